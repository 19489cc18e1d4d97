"""Probe and convert one small model of many families, and write what came out as a table.

    python benchmarks/families.py --rows FILE.json [--only NAME] [--counts] [--out docs/families.md]

The wanted number of residual adds is not traced: it is counted from the blocks that the model consists of, by
what their source says, or from the configuration. Rows that FILE.json has are not made again. timm and
transformers must be installed.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

import skipinit
from skipinit.provenance import Provenance

Adds = int | str | Callable[[Any], int]
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
STEPS, SECONDS = 20, 10
"""Of training after the conversion from scratch, whichever ends first; seconds of processor time."""

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
DECODER = SIZES | {"num_key_value_heads": 4, "head_dim": 8, "vocab_size": 100}
SEQUENCES = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
# Family: (options of the configuration, residual adds, how many of them have two readings)
HUGGING_FACE: dict[str, tuple[dict[str, Any], int, int]] = {
    "Bert": (SIZES | {"vocab_size": 100}, 4, 0),
    "Roberta": (SIZES | {"vocab_size": 100}, 4, 0),
    "Electra": (SIZES | {"vocab_size": 100, "embedding_size": 32}, 4, 0),
    "DistilBert": ({"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}, 4, 0),
    "Albert": (SIZES | {"vocab_size": 100, "embedding_size": 16}, 4, 4),
    "ConvBert": (SIZES | {"vocab_size": 100, "embedding_size": 32}, 4, 0),
    "MPNet": (SIZES | {"vocab_size": 100}, 4, 0),
    "DebertaV2": (SIZES | {"vocab_size": 100}, 4, 0),
    "GPT2": ({"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4}, 4, 0),
    "GPTNeo": (
        {"vocab_size": 100, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "intermediate_size": 64,
         "attention_types": [[["global", "local"], 1]]}, 4, 0,
    ),
    "GPTJ": ({"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4}, 2, 0),
    "GPTNeoX": (SIZES | {"vocab_size": 100}, 2, 0),
    "Falcon": ({k: v for k, v in SIZES.items() if k != "intermediate_size"} | {"vocab_size": 100}, 2, 0),
    "Bloom": ({"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 4}, 4, 0),
    "OPT": (
        {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
         "ffn_dim": 64, "word_embed_proj_dim": 32}, 4, 0,
    ),
    "Llama": (DECODER, 4, 0),
    "Mistral": (DECODER, 4, 0),
    "Qwen2": (DECODER, 4, 0),
    "Gemma": (DECODER, 4, 0),
    "Gemma2": (DECODER, 4, 0),
    "Phi": ({k: v for k, v in DECODER.items() if k != "head_dim"}, 2, 0),
    "StableLm": ({k: v for k, v in DECODER.items() if k != "head_dim"}, 4, 0),
    "Mamba": ({"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}, 4, 2),
    "T5": (
        {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}, 4 + 6, 0,
    ),
    "Bart": (SEQUENCES, 4 + 6, 0),
    "Pegasus": (SEQUENCES, 4 + 6, 0),
    "Marian": (SEQUENCES | {"pad_token_id": 1, "decoder_start_token_id": 1}, 4 + 6, 0),
    "ViT": (SIZES | {"image_size": 32, "patch_size": 8}, 4, 0),
    "DeiT": (SIZES | {"image_size": 32, "patch_size": 8}, 4, 0),
    "Dinov2": (
        {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
         "patch_size": 8}, 4, 0,
    ),
}  # fmt: skip
IMAGES = ("ViT", "DeiT", "Dinov2")
TWO_INPUTS = ("T5", "Bart", "Pegasus", "Marian")


_HEAD = """# Families

One small model of each family: the residual adds that `probe` finds, beside the number counted from the
blocks of the model or from its configuration, and both conversions. One run of
`python benchmarks/families.py --rows FILE.json --out docs/families.md`: {about}.

*As counted* is "yes" or the number that was counted. *From scratch*: how many norms were removed and the
largest branch share afterwards, which is 0 where every branch has its scalar; "at the add" counts scalars of
branches that no module of their own ends, and "0 norms" is a network without norms that gets scalars.
*Loss*: the first and the last of {steps} steps of `skipinit.recipe` on one batch of 2 random inputs, or as
many steps as {seconds} s of processor time allow; the rate is 0.05, or also 0.005 where the loss did not
fall. *`keep_function`*: the largest change of an output in evaluation mode, relative to the largest output.
Doubtful adds have [two readings](probe.md#what-counts-as-a-residual-add).

The counts come from reading the source of each block, and the table is no test on unseen models: where finder
and count differed, one of them was wrong, and several times it was the finder, whose rule was mended
(GhostNet, CoaT, EfficientViM, EfficientViT, FastViT, EdgeNeXt, Hiera, Res2Net, SAM). Counts that were
corrected after a look at what was found: GCViT, Sequencer, RelPos, MobileOne, RepGhost, SwiftFormer, NASNet,
PNASNet."""


@dataclass(frozen=True)
class Case:
    """A model to build, its inputs, and how many adds it has."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Any
    wanted: Callable[[nn.Module], int]
    doubtful: int = 0


def cases() -> Iterator[Case]:
    """All families."""
    _stub_torchvision()
    import timm
    import transformers

    transformers.logging.set_verbosity_error()
    for name in (*TIMM, *TIMM_RESIZED, *TIMM_SIZES):
        size = TIMM_SIZES.get(name, 64)
        options = TIMM_OPTIONS.get(name, {"img_size": size} if name in TIMM_RESIZED else {})
        build = partial(timm.create_model, name, **options)
        doubtful = TIMM_DOUBTFUL.get(name, 0)
        yield Case(f"timm {name}", build, (2, 3, size, size), _timm_adds, doubtful)
    ids = torch.randint(3, 90, (2, 8), generator=torch.Generator().manual_seed(0))
    for family, (options, count, doubtful) in HUGGING_FACE.items():
        inputs: Any = {"input_ids": ids} if family not in IMAGES else (2, 3, 32, 32)
        if family in TWO_INPUTS:
            inputs = {"input_ids": ids, "decoder_input_ids": ids}

        def build(family: str = family, options: dict[str, Any] = options) -> nn.Module:
            config = getattr(transformers, f"{family}Config")(**options)
            model: nn.Module = getattr(transformers, f"{family}Model")(config)
            return model

        yield Case(f"transformers {family}", build, inputs, lambda _, count=count: count, doubtful)


def _stub_torchvision() -> None:
    """Beside a CPU-only torch its compiled operators are missing, and timm imports it for images alone."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        global _LIBRARY
        _LIBRARY = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            _LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def _timm_adds(model: nn.Module) -> int:
    total = 0
    for module in model.modules():
        file, kind = type(module).__module__.rpartition(".")[2], type(module).__name__
        adds = TIMM_BLOCKS.get(f"{file}.{kind}", TIMM_BLOCKS.get(kind, 0))
        if isinstance(adds, str):
            total += int(bool(getattr(module, adds)))
        else:
            total += adds(module) if callable(adds) else adds
    return total


def row(case: Case, counts: bool) -> list[str]:
    """One line of the table; with `counts`, without the conversions."""
    torch.manual_seed(0)
    model = case.build()
    wanted = case.wanted(model)
    adds = skipinit.find_residual_adds(model, case.inputs)
    found = f"{len(adds)}" + (f" ({case.doubtful} doubtful)" if case.doubtful else "")
    as_counted = len(adds) == wanted and sum(bool(add.doubt) for add in adds) == case.doubtful
    exact = "yes" if as_counted else f"**{wanted}**"
    if counts:
        return [case.name, found, exact, "-", "-", "-"]
    loss = "-"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            conversion = skipinit.convert(model, case.inputs, seed=0)
            scratch = _describe(conversion)
            loss = _attempt(lambda: _train(conversion.model, case.inputs))
        except Exception as error:
            scratch = _reason(error)
        warned = any("contribute" in str(w.message) or "left as" in str(w.message) for w in caught)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kept = _attempt(lambda: f"{skipinit.convert(model, case.inputs, keep_function=True).difference:.0e}")
    return [case.name, found, exact, scratch + (", warned" if warned else ""), loss, kept]


def _describe(conversion: skipinit.Conversion) -> str:
    shares = [row.branch_share for row in conversion.after.rows]
    scalars = [change for change in conversion.changes if "scalar" in change.added]
    at_the_add = sum("branch_scales" in change.module for change in scalars)
    text = f"{conversion.num_norms} norms, shares {max(shares):.0%}"
    return text + (f", {at_the_add} at the add" if at_the_add else "")


def _train(converted: nn.Module, inputs: Any) -> str:
    if isinstance(inputs, tuple):
        inputs = (torch.randn(inputs, generator=torch.Generator().manual_seed(0)),)
    text = _train_at(0.05, converted, inputs)
    return text if "*" not in text else f"{text}; at 0.005 {_train_at(0.005, converted, inputs)}"


def _train_at(rate: float, converted: nn.Module, inputs: Any) -> str:
    model, labels = copy.deepcopy(converted).train(), torch.arange(2)
    trainer = skipinit.recipe(model, rate, warm_up=5)
    start = time.process_time()
    while len(trainer.losses) < STEPS and time.process_time() - start < SECONDS:
        out = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
        out = out if isinstance(out, torch.Tensor) else out[0]
        trainer.step(nn.functional.cross_entropy(out if out.dim() == 2 else out[:, 0], labels))
    first, last, steps = trainer.losses[0], trainer.losses[-1], len(trainer.losses)
    text = f"{first:.3g} to {last:.3g}" + (f" in {steps}" if steps < STEPS else "")
    return text if last < first else f"**{text}**"


def _attempt(work: Callable[[], str]) -> str:
    try:
        return work()
    except Exception as error:
        return _reason(error)


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    learned = "a learned scale ends every branch"
    for known in ("no batch norm to fold", "no residual add", learned, "no normalization"):
        if known in text:
            return known
    return f"**{type(error).__name__}: {text[:60]}**"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="families whose name contains this")
    parser.add_argument("--counts", action="store_true", help="count the adds and convert nothing")
    parser.add_argument("--rows", type=Path, required=True, help="what was found, as JSON")
    parser.add_argument("--out", type=Path, help="write the table there")
    options = parser.parse_args()
    rows = json.loads(options.rows.read_text()) if options.rows.exists() else {}
    lines = [
        "| model | adds found | as counted | from scratch | loss | `keep_function` |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    here = Provenance.here("cpu")
    versions = [f"{name} {version(name)}" for name in ("torch", "timm", "transformers")]
    about = f"{here.machine}, {torch.get_num_threads()} threads, {', '.join(versions)}, commit {here.commit}"
    exact, start = 0, time.time()
    for case in cases():
        if options.only.lower() not in case.name.lower():
            continue
        if case.name not in rows:
            try:
                rows[case.name] = row(case, options.counts)
            except Exception as error:
                rows[case.name] = [case.name, "-", _reason(error), "-", "-", "-"]
            options.rows.write_text(json.dumps(rows))
        cells = rows[case.name]
        exact += cells[2] == "yes"
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    count = len(lines) - 2
    summary = f"{exact} of {count} families exact ({math.floor(1000 * exact / max(1, count)) / 10} %)."
    print(f"{summary} {time.time() - start:.0f} s")
    if options.out is not None:
        head = _HEAD.format(about=about, steps=STEPS, seconds=SECONDS)
        options.out.write_text("\n".join([head, "", summary, "", *lines, ""]), encoding="utf-8")


if __name__ == "__main__":
    main()
