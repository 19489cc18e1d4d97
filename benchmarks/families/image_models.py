"""Small models of libraries for images: classification, segmentation, detection, restoration, medicine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import case
import torch
from case import Adds, Case, count_adds, stub_torchvision
from torch import Tensor, nn

LIBRARIES = (
    "torchvision", "pytorchcv", "segmentation_models_pytorch", "monai", "dynamic-network-architectures",
    "ultralytics", "efficientnet_pytorch", "pretrainedmodels", "kornia", "spandrel", "torchxrayvision",
    "open_clip_torch", "segment-anything", "lightly", "resnest",
)  # fmt: skip
Model = Callable[[], nn.Module]
# How many residual adds the forward of a block has, read from its source; a text names the attribute that
# says whether it has one.
BLOCKS: dict[str, Adds] = {
    # pytorchcv. RoR has a skip around each stage and around all, too. SCNet's `ScConv` has only a gate.
    "ResUnit": 1, "PreResUnit": 1, "PreResUnit1bit": 1, "DIAResUnit": 1, "ResDropResUnit": 1, "RoRResUnit": 1,
    "RoRResStage": 1, "RoRResBody": 1, "ShakeShakeResUnit": 1, "ShakeDropResUnit": 1, "SqnxtUnit": 1,
    "ShuffleUnit": lambda m: int(not m.downsample), "MEUnit": lambda m: int(not m.downsample),
    "InvResUnit": "residual", "ReversibleBlock": 2, "RevUnit": "resize_identity", "ScUnit": 1,
    "pytorchcv.ESPBlock": lambda m: int(not m.downsample), "ENetUnit": 1,
    "CGBlock": lambda m: int(not m.down), "LEDUnit": 1, "LwopResUnit": 1, "LwopEncoderFinalBlock": 1,
    "LwopRefinementBlock": 1, "FireUnit": "residual",
    "ChannetUnit": lambda m: int(m.merge_type == "add"),
    # torchvision, and what is built like it. A feature pyramid has none.
    "BasicBlock": 1, "Bottleneck": lambda m: int(getattr(m, "add", True)), "DeconvBottleneck": 1,
    "SEResNetBottleneck": 1,
    # segmentation_models_pytorch
    "PABBlock": 1, "GAUBlock": 1,
    # monai, and nnU-Net's blocks
    "monai.ResidualUnit": 1, "monai.ResBlock": 1, "SegResBlock": 1, "UnetResBlock": 1, "InputTransition": 1,
    "DownTransition": 1, "UpTransition": 1, "HighResBlock": 1, "AEKLResBlock": 1, "SpatialAttentionBlock": 1,
    "VQVAEResidualUnit": 1, "DiffusionUNetResnetBlock": 1, "RegistrationResidualConvBlock": 1,
    "AdditiveUpSampleBlock": 1, "ResNetBlock": 1, "monai.TransformerBlock": 2, "SwinTransformerBlock": 2,
    "MedNeXtBlock": 1, "MedNeXtDownBlock": 1, "MedNeXtUpBlock": 1, "SegResNet": lambda m: len(m.up_layers),
    "SegResNetDS": lambda m: len(m.up_layers), "LocalNet": lambda m: len(m.decode_deconvs), "MedNeXt": 3,
    "BasicBlockD": 1,
    # ultralytics
    "RepBottleneck": "add", "PSABlock": lambda m: 2 * m.add, "SPPF": "add",
    # efficientnet_pytorch, kornia
    "MBConvBlock": lambda m: int(m._block_args.stride in (1, [1]) and _same_width(m._block_args)),
    "ResidualBlock": lambda m: int(m.shortcut is not None),
    # spandrel
    "ResidualDenseBlock_5C": 1, "RRDB": 1, "spandrel.ShortcutBlock": 1, "RSTB": 1, "SwinIR": 1,
    "Swin2SR": 1, "HAB": 3, "OCAB": 2, "RHAG": 1, "HAT": 1, "NAFBlock": 2,
    "NAFNet": lambda m: 1 + len(m.decoders), "RCAB": 1,
    "spandrel.ResidualGroup": 1, "RCAN": 1, "MBConvResidual": 1, "PreNormResidual": 1,
    "Conv_PreNormResidual": 1, "OSAG": 1, "OmniSR": 1, "AttBlock": 2, "SAFMN": 1, "PLKBlock": 1, "PLKSR": 1,
    # open_clip, segment-anything
    "ResidualAttentionBlock": 2, "segment_anything.Block": 2,
}  # fmt: skip
# Name: size of the images.
PYTORCHCV = {
    "resnet20_cifar10": 32, "diaresnet20_cifar10": 32, "ror3_56_cifar10": 32,
    "shakeshakeresnet20_2x16d_cifar10": 32, "shakedropresnet20_cifar10": 32, "wrn20_10_1bit_cifar10": 32,
    "sqnxt23_w1": 64, "shufflenet_g1_w1": 64, "igcv3_wd4": 64, "menet108_8x1_g3": 64, "revnet38": 64,
    "channelnet": 64, "espnetv2_wd2": 64, "squeezeresnet_v1_1": 224, "scnet50": 128, "enet_cityscapes": 64,
    "cgnet_cityscapes": 64, "lednet_cityscapes": 64, "lwopenpose3d_mobilenet_cmupan_coco": 64,
}  # fmt: skip
GRAY, TINY = (2, 1, 32, 32), (2, 3, 16, 16)
_NORMS = {"norm_num_groups": 4}


def cases() -> Iterator[Case]:
    """All of them."""
    stub_torchvision()
    _define_nms()
    libraries = (_pytorchcv, _torchvision, _segmentation, _monai, _ultralytics, _restoration, _others)
    for library in libraries:
        for name, build, inputs, *wanted in library():
            yield Case(name, build, inputs, (lambda _, count=wanted[0]: count) if wanted else _count)


def _pytorchcv() -> Iterator[tuple[Any, ...]]:
    for name, size in PYTORCHCV.items():
        yield f"pytorchcv {name}", partial(_from_pytorchcv, name), (2, 3, size, size)
    # Two streams in each of its four blocks, of which the last joins them.
    yield "pytorchcv octresnet10_ad2", partial(_from_pytorchcv, "octresnet10_ad2"), (2, 3, 64, 64), 7


def _from_pytorchcv(name: str) -> nn.Module:
    """With a pooling at the end that takes images of any size."""
    model: Any = import_module("pytorchcv.model_provider").get_model(name)
    if isinstance(getattr(getattr(model, "features", None), "final_pool", None), nn.AvgPool2d):
        model.features.final_pool = nn.AdaptiveAvgPool2d(1)
    found: nn.Module = model
    return found


def _torchvision() -> Iterator[tuple[Any, ...]]:
    models = import_module("torchvision.models")
    frozen = import_module("torchvision.ops").FrozenBatchNorm2d
    backbone = import_module("torchvision.models.detection.backbone_utils").resnet_fpn_backbone
    generator = torch.Generator().manual_seed(0)
    images = [torch.rand(3, 64, width, generator=generator) for width in (64, 80)]
    boxes = ([[5.0, 5.0, 30.0, 40.0]], [[10.0, 5.0, 50.0, 40.0]])
    targets = [{"boxes": torch.tensor(box), "labels": torch.tensor([1])} for box in boxes]
    few = {f"rpn_{when}_nms_top_n_{mode}": 10 for when in ("pre", "post") for mode in ("train", "test")}
    sizes = {"num_classes": 3, "min_size": 64, "max_size": 96}

    def detector(kind: str, norm: type[nn.Module], **options: Any) -> nn.Module:
        features = backbone(backbone_name="resnet18", weights=None, norm_layer=norm, trainable_layers=3)
        found: nn.Module = getattr(models.detection, kind)(features, **sizes, **options)
        return found

    detection = (images, targets)
    yield "torchvision FasterRCNN", partial(detector, "FasterRCNN", frozen, **few), detection
    fcos = partial(detector, "FCOS", nn.BatchNorm2d, score_thresh=0.0, topk_candidates=20)
    yield "torchvision FCOS", fcos, detection
    yield "torchvision mc3_18", partial(models.video.mc3_18, num_classes=5), (2, 3, 4, 32, 32)


def _segmentation() -> Iterator[tuple[Any, ...]]:
    smp = import_module("segmentation_models_pytorch")
    options = {"encoder_name": "resnet18", "encoder_weights": None, "classes": 2}
    for name in ("Unet", "MAnet"):
        yield f"smp {name}", partial(getattr(smp, name), **options), (2, 3, 64, 64)
    # Its attention only gates. Linknet has four long skips. PAN's pyramid joins parallel towers.
    yield "smp Unet, scSE", partial(smp.Unet, decoder_attention_type="scse", **options), (2, 3, 64, 64)
    yield "smp Linknet", partial(smp.Linknet, **options), (2, 3, 64, 64), 8 + 4
    yield "smp PAN", partial(smp.PAN, **options), (2, 3, 128, 128)


def _monai() -> Iterator[tuple[Any, ...]]:
    nets = import_module("monai.networks.nets")
    small = {"channels": (4, 8, 16), "strides": (2, 2)}
    levels = {"num_res_blocks": (1, 1), "channels": (8, 16), "attention_levels": (False, True), **_NORMS}
    vit = {"hidden_size": 48, "mlp_dim": 96, "num_heads": 4, "spatial_dims": 2}
    blocks = {"spatial_dims": 2, "init_filters": 8, "blocks_down": (1, 2, 2)}
    codes = {"downsample_parameters": ((2, 4, 1, 1),) * 2, "upsample_parameters": ((2, 4, 1, 1, 0),) * 2}
    one = {"blocks_down": (1,) * 3, "blocks_bottleneck": 1, "blocks_up": (1,) * 3}
    models: dict[str, tuple[Model, Any]] = {
        "UNet": (partial(nets.UNet, 3, 1, 2, num_res_units=2, norm="batch", **small), (2, 1, 16, 16, 16)),
        "SegResNet": (partial(nets.SegResNet, blocks_up=(1, 1), norm="batch", **blocks), GRAY),
        "SegResNetDS": (partial(nets.SegResNetDS, **blocks), GRAY),
        "DynUNet": (
            partial(nets.DynUNet, 2, 1, 2, [3] * 3, [1, 2, 2], [2, 2], filters=[8, 16, 32], res_block=True),
            GRAY,
        ),
        "UNETR": (partial(nets.UNETR, 1, 2, img_size=32, feature_size=8, **vit), GRAY),
        "SwinUNETR": (partial(nets.SwinUNETR, 1, 2, feature_size=12, spatial_dims=2), (2, 1, 64, 64)),
        "VNet": (partial(nets.VNet, spatial_dims=2, out_channels=2), GRAY),
        "HighResNet": (partial(nets.HighResNet, 2, 1, 2), GRAY),
        "resnet10": (partial(nets.resnet10, n_input_channels=1, num_classes=3), (2, 1, 16, 32, 32)),
        "AutoencoderKL": (partial(nets.AutoencoderKL, 2, 1, 1, latent_channels=2, **levels), GRAY),
        "VQVAE": (
            partial(
                nets.VQVAE, 2, 1, 1, channels=(8, 16), num_res_channels=(8, 16), num_res_layers=2,
                num_embeddings=16, embedding_dim=8, **codes,
            ), GRAY,
        ),
        "DiffusionModelUNet": (
            partial(nets.DiffusionModelUNet, 2, 1, 1, num_head_channels=4, **levels),
            {"x": torch.randn(GRAY, generator=torch.Generator().manual_seed(0)),
             "timesteps": torch.tensor([1, 5])},
        ),
        "LocalNet": (partial(nets.LocalNet, 2, 1, 8, (0, 1, 2), out_channels=2), GRAY),
        "MedNeXt": (
            partial(nets.MedNeXt, 2, 8, in_channels=1, out_channels=2, use_residual_connection=True, **one),
            GRAY,
        ),
    }  # fmt: skip
    for name, (build, inputs) in models.items():
        yield f"monai {name}", build, inputs
    unets = import_module("dynamic_network_architectures.architectures.unet")
    stages = {
        "input_channels": 1, "n_stages": 3, "features_per_stage": (8, 16, 32), "conv_op": nn.Conv2d,
        "kernel_sizes": 3, "strides": (1, 2, 2), "n_blocks_per_stage": (1, 2, 2), "num_classes": 2,
        "n_conv_per_stage_decoder": 1, "conv_bias": True, "norm_op": nn.BatchNorm2d, "nonlin": nn.LeakyReLU,
    }  # fmt: skip
    for name in ("ResidualEncoderUNet", "ResidualUNet"):
        yield f"nnU-Net {name}", partial(getattr(unets, name), **stages), GRAY


def _ultralytics() -> Iterator[tuple[Any, ...]]:
    tasks = import_module("ultralytics.nn.tasks")
    for name in ("yolov8n", "yolo26n"):
        yield (
            f"ultralytics {name}",
            partial(tasks.DetectionModel, f"{name}.yaml", nc=3, verbose=False),
            (2, 3, 64, 64),
        )


def _restoration() -> Iterator[tuple[Any, ...]]:
    def from_spandrel(name: str, file: str, kind: str, *args: Any, **options: Any) -> nn.Module:
        module = import_module(f"spandrel.architectures.{name}.__arch.{file}")
        found: nn.Module = getattr(module, kind)(*args, **options)
        return found

    swin = {
        "img_size": 16, "depths": [2, 2], "num_heads": [2, 2], "embed_dim": 24, "window_size": 4,
        "mlp_ratio": 2, "upscale": 2, "upsampler": "pixelshuffle",
    }  # fmt: skip
    hat = {**swin, "compress_ratio": 3, "squeeze_factor": 6}
    ones = {"middle_blk_num": 1, "enc_blk_nums": [1, 1], "dec_blk_nums": [1, 1]}
    groups = {"n_resgroups": 2, "n_resblocks": 2, "n_feats": 16}
    omni = {"num_feat": 16, "res_num": 1, "block_num": 1, "up_scale": 2, "window_size": 4, "pe": True}
    models: dict[str, tuple[Model, Any]] = {
        "ESRGAN": (partial(from_spandrel, "ESRGAN", "RRDB", "RRDBNet", num_filters=16, num_blocks=2), TINY),
        "SwinIR": (partial(from_spandrel, "SwinIR", "SwinIR", "SwinIR", **swin), TINY),
        "Swin2SR": (partial(from_spandrel, "Swin2SR", "Swin2SR", "Swin2SR", **swin), TINY),
        "HAT": (partial(from_spandrel, "HAT", "HAT", "HAT", **hat), TINY),
        "NAFNet": (partial(from_spandrel, "NAFNet", "NAFNet_arch", "NAFNet", width=8, **ones), TINY),
        "RCAN": (partial(from_spandrel, "RCAN", "rcan_arch", "RCAN", **groups), TINY),
        "OmniSR": (partial(from_spandrel, "OmniSR", "OmniSR", "OmniSR", **omni), TINY),
        "SAFMN": (partial(from_spandrel, "SAFMN", "safmn", "SAFMN", dim=16, n_blocks=2), TINY),
        "PLKSR": (partial(from_spandrel, "PLKSR", "PLKSR", "PLKSR", dim=16, n_blocks=2), TINY),
    }  # fmt: skip
    for name, (build, inputs) in models.items():
        yield f"spandrel {name}", build, inputs


def _others() -> Iterator[tuple[Any, ...]]:
    network = import_module("efficientnet_pytorch").EfficientNet
    efficient = partial(network.from_name, "efficientnet-b0", num_classes=5)
    yield "efficientnet_pytorch b0", efficient, (2, 3, 64, 64)
    yield "pretrainedmodels SENet", _senet, (2, 3, 64, 64)
    encoders = import_module("torchxrayvision.autoencoders")
    parts = encoders.Bottleneck, encoders.DeconvBottleneck
    yield "torchxrayvision autoencoder", partial(encoders._ResNetAE, *parts, [1] * 4, 1), (1, 1, 224, 224)
    resnest = import_module("resnest.torch.resnet")
    radix = {"radix": 2, "groups": 1, "bottleneck_width": 64, "deep_stem": True, "avg_down": True}
    layers = partial(resnest.ResNet, resnest.Bottleneck, [1] * 4, num_classes=5, stem_width=8, **radix)
    yield "resnest", layers, (2, 3, 64, 64)
    clip = import_module("open_clip.model").CLIP
    text = {"context_length": 8, "vocab_size": 100, "width": 48, "heads": 4, "layers": 2}
    vision = {"image_size": 32, "layers": 2, "width": 48, "head_width": 12, "patch_size": 8}
    words = torch.randint(1, 90, (2, 8), generator=torch.Generator().manual_seed(0))
    pixels = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    yield "open_clip ViT", partial(clip, 32, vision, text), (pixels[..., :32, :32].clone(), words)
    convolutions = {"image_size": 64, "layers": [1, 1, 1, 1], "width": 16, "patch_size": None}
    yield "open_clip ResNet", partial(clip, 32, convolutions, text), (pixels, words)
    sam = import_module("segment_anything.modeling")
    encoder = partial(
        sam.ImageEncoderViT, img_size=64, patch_size=8, embed_dim=48, depth=3, num_heads=4, out_chans=16,
        use_rel_pos=True, window_size=4, global_attn_indexes=(2,),
    )  # fmt: skip
    yield "segment_anything encoder", encoder, (2, 3, 64, 64)
    lightly = import_module("lightly.models")
    yield "lightly resnet-9", partial(lightly.ResNetGenerator, "resnet-9", 0.25), (2, 3, 32, 32)
    kornia = import_module("kornia.models.efficient_vit.backbone")
    yield "kornia EfficientViT", kornia.efficientvit_backbone_b0, (2, 3, 64, 64)


def _senet() -> nn.Module:
    senet = import_module("pretrainedmodels.models.senet")
    block, layers = senet.SEResNetBottleneck, [1] * 4
    options = {"inplanes": 64, "input_3x3": False, "downsample_kernel_size": 1, "downsample_padding": 0}
    model: Any = senet.SENet(block, layers, 1, 16, None, num_classes=5, **options)
    model.avg_pool = nn.AdaptiveAvgPool2d(1)
    found: nn.Module = model
    return found


def _same_width(block: Any) -> bool:
    return bool(block.id_skip and block.input_filters == block.output_filters)


def _define_nms() -> None:
    """What detectors call of torchvision's compiled operators, where these are missing."""
    boxes = import_module("torchvision.ops.boxes")
    library = getattr(case, "_LIBRARY", None)
    if library is not None and not hasattr(library, "has_nms"):
        library.has_nms = True
        library.impl("nms", _nms, "CPU")
        boxes._assert_has_ops = lambda: None
        torch.compiler.set_stance("force_eager")  # Its `roi_align` in Python would be compiled.


def _nms(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The boxes that no better one overlaps by more than the threshold, the best first."""
    kept: list[int] = []
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    alive = torch.ones(len(boxes), dtype=torch.bool)
    for index in scores.argsort(descending=True, stable=True).tolist():
        if alive[index]:
            kept.append(index)
            corners = torch.maximum(boxes[index, :2], boxes[:, :2])
            shared = (torch.minimum(boxes[index, 2:], boxes[:, 2:]) - corners).clamp(min=0).prod(1)
            alive &= shared <= iou_threshold * (area[index] + area - shared)
    return torch.tensor(kept, dtype=torch.int64)


def _count(model: nn.Module) -> int:
    return count_adds(model, BLOCKS)
