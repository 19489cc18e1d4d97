"""The smallest model of every file of timm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from case import Adds, Case, count_adds, stub_torchvision
from torch import nn

LIBRARIES = ("timm",)
# How many residual adds the forward of a block has, read from its source; a text names the attribute that
# says whether it has one. Where two files of timm have classes of one name, the file is named, too.
TIMM_BLOCKS: dict[str, Adds] = {
    "BasicBlock": 1, "Bottleneck": 1, "PreActBasic": 1, "PreActBottleneck": 1, "ResNestBottleneck": 1,
    "SelectiveKernelBasic": 1, "SelectiveKernelBottleneck": 1, "InvertedResidual": "has_skip",
    "DepthwiseSeparableConv": "has_skip", "EdgeResidual": "has_skip", "ConvBnAct": "has_skip",
    "UniversalInvertedResidual": "has_skip", "MobileAttention": "has_skip", "CondConvResidual": "has_skip",
    "Block": 2, "ConvNeXtBlock": 1, "SwinTransformerBlock": 2, "SwinTransformerV2Block": 2, "MixerBlock": 2,
    "SpatialGatingBlock": 1, "ResBlock": 2, "MetaFormerBlock": 2, "LayerScaleBlock": 2,
    "LayerScaleBlockClassAttn": 2, "XCABlock": 3, "ClassAttentionBlock": 2, "Residual": 1,
    "GhostBottleneck": 1, "DarkBlock": 1,
    "BottleneckBlock": lambda m: int(getattr(m, "shortcut", m) is not None), "EdgeBlock": 1, "DlaBasic": 1,
    "DlaBottleneck": 1, "EvaBlock": 2, "FocalNetBlock": 2, "GlobalContextVitBlock": 2, "Block35": 1,
    "Block17": 1, "Block8": 1, "TransformerLayer": 2, "NormFreeBlock": 1, "Sequencer2dBlock": 2,
    "MbConvBlock": 1, "RelPosBlock": 2, "RepVggBlock": lambda m: int(m.identity is not None),
    "MobileOneBlock": lambda m: int(m.identity is not None),
    "NextVitBlock": 2, "ParallelScalingBlock": 2, "ResPostBlock": 2, "HieraBlock": 2,
    # Second batch.
    "SelfAttnBlock": lambda m: int(m.shortcut is not None), "SerialBlock": 3, "ParallelBlock": 9,
    "ResidualBlock": lambda m: int(m.shortcut is not None), "CrossAttentionBlock": 1,
    "csatv2.Block": 1, "SpatialTransformerBlock": 2, "csatv2.PosConv": 1, "TransformerBlock": 2,
    "SpatialBlock": 2, "ChannelBlock": 2, "davit.ConvPosEnc": 1, "DeepseekVitBlock": 2, "DualPathBlock": 1,
    "edgenext.ConvBlock": 1, "SplitTransposeBlock": 2, "MetaBlock2d": 2, "MetaBlock1d": 2,
    "EfficientFormerV2Block": lambda m: 1 + (m.token_mixer is not None),
    "efficientformer_v2.Downsample": lambda m: int(m.attn is not None), "LocalGlobalQuery": 1,
    "EfficientViMBlock": 4, "efficientvim.PatchMerging": 2, "ResidualDrop": 1, "fasternet.Block": 0,
    "MLPBlock": 1,     "RepMixerBlock": 1, "RepMixer": 1, "Gemma4Block": 2, "HighPerfGpuBlock": "residual",
    "hieradet_sam2.MultiScaleBlock": 2, "MetaNeXtBlock": 1, "RepDepthwiseSeparable": "use_shortcut",
    "LevitBlock": 2, "LevitDownsample": 1, "GatedConvBlock": 1, "PartitionAttentionCl": 2,
    "mvitv2.MultiScaleBlock": 2, "mvitv2.MultiScaleAttention": "residual_pooling", "NextConvBlock": 2,
    "NextTransformerBlock": 3, "rdnet.Block": 0,
    "RepGhostBottleneck": 1, "RepGhostModule": lambda m: len(m.fusion_bn), "RepViTBlock": 1, "RepVggDw": 1,
    "RepVitDownsample": 1, "Bottle2neck": 1, "LinearBottleneck": "use_shortcut", "SEResNetBlock": 1,
    "shvit.BasicBlock": 0, "starnet.Block": 1, "ConvEncoder": 1,
    "EfficientAdditiveAttention": 1, "visformer.Block": lambda m: 1 + (m.attn is not None),
    "LocalRepresentation": 1,
    "SwinTransformerV2CrBlock": 2, "tiny_vit.MBConv": 1, "TinyVitBlock": 2, "tnt.Block": 4,
    "twins.PosConv": lambda m: int(m.stride == 1), "MbConvLNBlock": 1, "Outlooker": 2, "volo.Transformer": 2,
    "nasnet.CellStem0": 4, "nasnet.CellStem1": 1, "FirstCell": 1, "NormalCell": 1, "ReductionCell0": 1,
    "ReductionCell1": 1, "pnasnet.CellStem0": 3, "pnasnet.Cell": 3, "ClassBlock": 2,
    "OsaBlock": "residual", "xception.Block": 1,
    "PreXceptionModule": lambda m: int(not m.no_skip), "TransformerBlockCl": 2, "TransformerBlock2d": 2,
}  # fmt: skip
# The smallest model of every file of timm, and of some families within one, on images of 64 x 64.
TIMM = (
    "resnet10t", "resnet26", "seresnet50", "resnest14d", "skresnet18", "resnetv2_18", "regnetx_002",
    "regnety_002", "efficientnet_b0", "efficientnetv2_rw_t", "mobilenetv2_050", "mobilenetv3_small_050",
    "mobilenetv4_conv_small_035", "mnasnet_small", "fbnetc_100", "spnasnet_100", "tinynet_e", "lcnet_035",
    "mixnet_s", "convnext_atto", "convnextv2_atto", "poolformer_s12", "poolformerv2_s12",
    "xcit_nano_12_p16_224", "convmixer_768_32", "ghostnet_050", "cspresnet50", "cspdarknet53",
    "darknet17", "dla46_c", "focalnet_tiny_srf", "nfnet_l0", "nf_regnet_b0", "nf_resnet26",
    "sequencer2d_s", "hrnet_w18_small", "pvt_v2_b0", "densenet121", "vgg11_bn", "caformer_s18",
    "convformer_s18", "tf_efficientnet_lite0", "wide_resnet50_2", "resnext50_32x4d", "ecaresnet26t",
    "gernet_s", "resnet50_gn", "hardcorenas_a", "semnasnet_075", "tresnet_m", "repvgg_a0", "mobileone_s0",
    "cpubone_nano", "crossvit_tiny_240", "csatv2", "davit_tiny", "dpn48b", "edgenext_xx_small",
    "efficientvim_m1", "efficientvit_b0", "fasternet_t0", "fastvit_t8", "hgnetv2_b0", "sam2_hiera_tiny",
    "iformer_t", "inception_next_atto", "lcnetv2_small", "lowformer_b0", "test_mambaout",
    "mobilenetv5_base", "mobilevit_xxs", "mvitv2_tiny", "nextvit_small", "rdnet_tiny", "repghostnet_050",
    "repvit_m1", "res2next50", "rexnet_100", "selecsls42", "legacy_seresnet18", "shvit_s1",
    "starnet_s050", "swiftformer_xs", "tiny_vit_5m_224", "twins_svt_small", "samvit_base_patch16_224",
    "ese_vovnet19b_slim_dw",
)  # fmt: skip
# Models that must be told the size.
TIMM_RESIZED = (
    "vit_tiny_patch16_224", "deit_tiny_patch16_224", "swin_tiny_patch4_window7_224",
    "swinv2_tiny_window8_256", "mixer_s32_224", "gmlp_ti16_224", "resmlp_12_224", "cait_xxs24_224",
    "eva02_tiny_patch14_224", "gcvit_xxtiny", "nest_tiny", "beit_base_patch16_224", "pit_ti_224",
    "vit_relpos_small_patch16_224", "coat_tiny", "convit_tiny", "efficientvit_m0", "hiera_tiny_224",
    "levit_128s", "maxvit_pico_rw_256", "coatnet_pico_rw_224", "swinv2_cr_tiny_224",
    "tnt_s_legacy_patch16_224", "visformer_tiny", "vit_tiny_r_s16_p8_224", "vitamin_small_224",
    "volo_d1_224", "efficientformerv2_s0",
)  # fmt: skip
# Models that need larger images.
TIMM_SIZES = {
    "inception_resnet_v2": 96, "inception_v3": 96, "halonet_h1": 256, "efficientformer_l1": 224,
    "inception_v4": 96, "nasnetalarge": 96, "pnasnet5large": 96, "legacy_xception": 96, "xception41p": 96,
    "qwen3_vit_88m": 96, "naflexvit_base_patch16_parfac_gap": 96, "gemma4_vit_167m": 96,
    "deepseek_vit_412m": 112,
}  # fmt: skip
TIMM_DOUBTFUL = {"coat_tiny": 26}  # its position encodings are shared
TIMM_OPTIONS = {"deepseek_vit_412m": {"depth": 4}, "gemma4_vit_167m": {"depth": 4}}
"""Of models that are too large."""


def cases() -> Iterator[Case]:
    """All of them."""
    stub_torchvision()
    import timm

    for name in (*TIMM, *TIMM_RESIZED, *TIMM_SIZES):
        size = TIMM_SIZES.get(name, 64)
        options = TIMM_OPTIONS.get(name, {"img_size": size} if name in TIMM_RESIZED else {})
        build = partial(timm.create_model, name, **options)
        doubtful = TIMM_DOUBTFUL.get(name, 0)
        yield Case(f"timm {name}", build, (2, 3, size, size), _count, doubtful)


def _count(model: nn.Module) -> int:
    return count_adds(model, TIMM_BLOCKS, by_file=True)
