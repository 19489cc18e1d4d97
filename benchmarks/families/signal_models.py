"""Small models that generate, and models of sound, sequences and signals, from libraries beside timm and
transformers.

Install the libraries with `pip install --no-deps`: some ask for another torch. Torchaudio, which does not
load beside a CPU-only torch, is imported for files alone and replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from importlib.machinery import ModuleSpec
from typing import Any
from unittest.mock import MagicMock

import torch
from case import Adds, Case, count_adds, stub_torchvision
from torch import Tensor, nn

LIBRARIES = (
    "diffusers", "denoising-diffusion-pytorch", "torchcfm", "vit-pytorch", "x-transformers", "x-clip",
    "perceiver-pytorch", "conformer", "mambapy", "xlstm", "reformer-pytorch", "performer-pytorch",
    "linear-attention-transformer", "local-attention", "nystrom-attention", "g-mlp-pytorch",
    "mlp-mixer-pytorch", "tab-transformer-pytorch", "vector-quantize-pytorch", "encodec",
    "descript-audio-codec", "audio-encoders-pytorch", "audio-diffusion-pytorch", "speechbrain", "asteroid",
    "braindecode", "neuralforecast", "chronos-forecasting", "tsai",
)  # fmt: skip
# How many residual adds the forward of a class has, read from its source; a text names the attribute that
# says whether it has one. Loops that add in the forward of a whole model count their layers.
BLOCKS: dict[str, Adds] = {
    # Generative. The attention of diffusers says whether it adds; transformer blocks ask it not to.
    "diffusers.ResnetBlock2D": 1, "diffusers.Attention": "residual_connection",
    "diffusers.BasicTransformerBlock": lambda m: 2 + (m.attn2 is not None),
    "diffusers.Transformer2DModel": 1, "diffusers.ResConvBlock": 1, "diffusers.SelfAttention1d": 1,
    "diffusers.TemporalConvLayer": 1, "diffusers.TransformerTemporalModel": 1,
    "diffusers.JointTransformerBlock": lambda m: 2 if m.context_pre_only else 4,
    "diffusers.FluxTransformerBlock": 4, "diffusers.FluxSingleTransformerBlock": 1,
    "diffusers.HunyuanDiTBlock": 3, "diffusers.OobleckResidualUnit": 1, "diffusers.StableAudioDiTBlock": 3,
    "diffusers.StableAudioDiTModel": 2, "diffusers.AutoencoderTinyBlock": 1,
    "diffusers.WanTransformerBlock": 3, "diffusers.SanaTransformerBlock": 3,
    # What blends x with x + f(x) has no branch of its own.
    "diffusers.AlphaBlender": 0, "diffusers.TemporalResnetBlock": 1,
    "diffusers.TemporalBasicTransformerBlock": lambda m: 2 + 2 * m.is_res,
    "diffusers.TransformerSpatioTemporalModel": 1, "diffusers.ConvNextBlock": 1,
    "diffusers.SkipFFTransformerBlock": 2, "diffusers.AuraFlowJointTransformerBlock": 4,
    "diffusers.AuraFlowSingleTransformerBlock": 2, "diffusers.SDCascadeResBlock": 1,
    "diffusers.SDCascadeAttnBlock": 1, "diffusers.ResBlock": 1, "diffusers.DCDownBlock2d": "shortcut",
    "diffusers.SanaMultiscaleLinearAttention": "residual_connection", "diffusers.DCUpBlock2d": "shortcut",
    "diffusers.GLUMBConv": "residual_connection",
    "diffusers.Encoder": lambda m: int(getattr(m, "out_shortcut", False)),
    "diffusers.Decoder": lambda m: int(getattr(m, "in_shortcut", False)),
    "denoising_diffusion_pytorch.Unet": lambda m: len(m.downs) + 1 + len(m.ups),
    "denoising_diffusion_pytorch.ResnetBlock": 1, "denoising_diffusion_pytorch.Residual": 1,
    "denoising_diffusion_pytorch.simple_diffusion.LinearAttention": 1,
    "denoising_diffusion_pytorch.simple_diffusion.Transformer": lambda m: 2 * len(m.layers),
    "denoising_diffusion_pytorch.Encoder": 1, "denoising_diffusion_pytorch.Decoder": 1,
    "denoising_diffusion_pytorch.karras_unet.Attention": 1,
    "torchcfm.ResBlock": 1, "torchcfm.AttentionBlock": 1,
    # Sequences.
    "x_transformers.Residual": 1, "x_transformers.GRUGating": 1,
    "x_clip.Transformer": lambda m: 2 * len(m.layers), "conformer.ConformerBlock": 4,
    "mambapy.ResidualBlock": 1, "mambapy.MambaBlock": 1, "mambapy.VMambaBlock": 2,
    "mambapy.AttentionLayer": 2, "mambapy.MambaLayer": 2,
    "xlstm.mLSTMBlock": 1, "xlstm.mLSTMLayer": 1, "xlstm.sLSTMBlock": 2,
    # Sound.
    "encodec.SEANetResnetBlock": 1, "encodec.SLSTM": "skip", "dac.ResidualUnit": 1,
    "audio_encoders_pytorch.ResnetBlock1d": 1, "speechbrain.SERes2NetBlock": 1,
    "speechbrain.ConformerEncoderLayer": 4, "speechbrain.TemporalBlock": 1,
    "speechbrain.TransformerEncoderLayer": 2, "speechbrain.Dual_Computation_Block": 2,
    "asteroid.UBlock": lambda m: m.depth, "asteroid.DPRNNBlock": 2, "asteroid.ImprovedTransformedLayer": 2,
    # Signals and series.
    "braindecode._TCNResidualBlock": 1, "braindecode._AttentionBlock": 1, "braindecode._ResidualAdd": 1,
    "braindecode._TemporalBlock": 1, "braindecode._TCBlock": 1, "braindecode.CTNet": 1,
    "braindecode._MultiKernelConvBlock": 1, "braindecode._TransformerBlock": 2,
    "neuralforecast.NBEATS": lambda m: len(m.blocks), "neuralforecast.TransEncoderLayer": 2,
    "neuralforecast.autoformer.EncoderLayer": 2, "neuralforecast.autoformer.DecoderLayer": 3,
    "neuralforecast.TSTEncoderLayer": 2, "neuralforecast.GRN": 1, "neuralforecast.MLPResidual": 1,
    "neuralforecast.TemporalCovariateEncoder": 1, "neuralforecast.TemporalFusionDecoder": 2,
    "chronos.ResidualBlock": 1, "transformers.T5LayerSelfAttention": 1, "transformers.T5LayerFF": 1,
    "transformers.T5LayerCrossAttention": 1,
    "tsai.InceptionBlock": lambda m: m.depth // 3, "tsai.XceptionBlock": 2, "tsai._TSTEncoderLayer": 2,
}  # fmt: skip
Options = dict[str, Any]


def cases() -> Iterator[Case]:
    """All of them."""
    stub_torchvision()
    _stub_torchaudio()
    yield from _generative()
    yield from _vision()
    yield from _sequences()
    yield from _sound()
    yield from _signals()


def _stub_torchaudio() -> None:
    for name in ("", ".transforms", ".functional", ".compliance", ".compliance.kaldi"):
        stub = MagicMock(__version__="2.11.0", __path__=[])
        stub.__spec__ = ModuleSpec(f"torchaudio{name}", None)
        sys.modules.setdefault(f"torchaudio{name}", stub)


_GENERATOR = torch.Generator().manual_seed(0)


def _values(*shape: int) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR)


def _tokens(*shape: int) -> Tensor:
    return torch.randint(0, 32, shape, generator=_GENERATOR)


def _make(path: str, *args: Any, **options: Any) -> nn.Module:
    """The model of that class, given as module:class."""
    home, _, name = path.partition(":")
    model: nn.Module = getattr(import_module(home), name)(*args, **options)
    return model


def _case(
    name: str, path: str, options: Options, inputs: Any, wanted: int | None = None, doubtful: int = 0
) -> Case:
    """Where no class says how many adds there are, `wanted` does."""
    count = _count if wanted is None else lambda _: wanted
    return Case(name, partial(_make, path, **options), inputs, count, doubtful)


def _count(model: nn.Module, more: int = 0) -> int:
    return more + count_adds(model, BLOCKS)


def _generative() -> Iterator[Case]:
    narrow = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 4}
    cross = narrow | {"cross_attention_dim": 16, "attention_head_dim": 8}
    code = narrow | {
        "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2,
    }  # fmt: skip
    heads = {"num_attention_heads": 2, "attention_head_dim": 16, "num_layers": 2}
    steps, text, image = torch.tensor([1, 7]), _values(2, 5, 16), _values(2, 3, 32, 32)
    sample = {"sample": _values(2, 4, 16, 16), "timestep": steps, "encoder_hidden_states": text}
    latent = {"hidden_states": _values(2, 4, 8, 8), "timestep": steps}
    models: dict[str, tuple[Options, Options]] = {
        "UNet2DModel": (
            narrow | {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"),
                      "up_block_types": ("AttnUpBlock2D", "UpBlock2D")},
            {"sample": _values(2, 3, 16, 16), "timestep": steps},
        ),
        "UNet2DConditionModel": (
            cross | {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
                     "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}, sample,
        ),
        "UNet1DModel": (
            {"sample_size": 512, "extra_in_channels": 64}, {"sample": _values(2, 2, 512), "timestep": steps},
        ),
        "UNet3DConditionModel": (
            cross | {"down_block_types": ("CrossAttnDownBlock3D", "DownBlock3D"),
                     "up_block_types": ("UpBlock3D", "CrossAttnUpBlock3D")},
            sample | {"sample": _values(2, 4, 3, 8, 8)},
        ),
        "UNetSpatioTemporalConditionModel": (
            {"block_out_channels": (32, 64), "layers_per_block": 1, "num_attention_heads": (2, 4),
             "down_block_types": ("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
             "up_block_types": ("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
             "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 24,
             "cross_attention_dim": 16, "in_channels": 4},
            {"sample": _values(2, 2, 4, 8, 8), "timestep": steps[:1], "encoder_hidden_states": text,
             "added_time_ids": _values(2, 3)},
        ),
        "ControlNetModel": (
            cross | {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
                     "conditioning_embedding_out_channels": (4, 8)},
            sample | {"controlnet_cond": image},
        ),
        "AutoencoderKL": (code, {"sample": image}),
        "AutoencoderTiny": (
            {"encoder_block_out_channels": (8, 8), "decoder_block_out_channels": (8, 8),
             "num_encoder_blocks": (1, 2), "num_decoder_blocks": (2, 1)}, {"sample": image},
        ),
        "AutoencoderDC": (
            {"latent_channels": 8, "attention_head_dim": 8, "encoder_block_out_channels": (16, 32),
             "encoder_block_types": ("ResBlock", "EfficientViTBlock"),
             "decoder_block_types": ("ResBlock", "EfficientViTBlock"),
             "decoder_block_out_channels": (16, 32), "encoder_layers_per_block": (1, 1),
             "decoder_layers_per_block": (1, 1), "encoder_qkv_multiscales": ((), (5,)),
             "decoder_qkv_multiscales": ((), (5,))}, {"sample": image},
        ),
        "AutoencoderOobleck": (
            {"encoder_hidden_size": 8, "downsampling_ratios": [2, 4], "channel_multiples": [1, 2],
             "decoder_channels": 8, "decoder_input_channels": 4}, {"sample": _values(2, 2, 256)},
        ),
        "VQModel": (code | {"num_vq_embeddings": 16}, {"sample": image}),
        "DiTTransformer2DModel": (
            heads | {"sample_size": 8, "num_embeds_ada_norm": 10},
            latent | {"class_labels": torch.tensor([0, 3])},
        ),
        "PixArtTransformer2DModel": (
            heads | {"sample_size": 8, "cross_attention_dim": 32, "caption_channels": 16},
            latent | {"encoder_hidden_states": text},
        ),
        "SD3Transformer2DModel": (
            heads | {"sample_size": 8, "in_channels": 4, "out_channels": 4, "joint_attention_dim": 16,
                     "caption_projection_dim": 32, "pooled_projection_dim": 8, "pos_embed_max_size": 8},
            latent | {"encoder_hidden_states": text, "pooled_projections": _values(2, 8)},
        ),
        "FluxTransformer2DModel": (
            heads | {"in_channels": 4, "num_single_layers": 2, "joint_attention_dim": 16,
                     "pooled_projection_dim": 8, "axes_dims_rope": (4, 4, 8)},
            {"hidden_states": _values(2, 16, 4), "encoder_hidden_states": text,
             "pooled_projections": _values(2, 8), "timestep": steps / 10, "img_ids": torch.zeros(16, 3),
             "txt_ids": torch.zeros(5, 3)},
        ),
        "HunyuanDiT2DModel": (
            heads | {"in_channels": 4, "patch_size": 2, "sample_size": 8, "hidden_size": 32, "text_len": 5,
                     "cross_attention_dim": 16, "cross_attention_dim_t5": 16, "pooled_projection_dim": 8,
                     "text_len_t5": 5, "use_style_cond_and_image_meta_size": False},
            latent | {"timestep": steps.float(), "encoder_hidden_states": text,
                      "encoder_hidden_states_t5": text, "text_embedding_mask": torch.ones(2, 5),
                      "text_embedding_mask_t5": torch.ones(2, 5),
                      "image_rotary_emb": (_values(16, 16), _values(16, 16))},
        ),
        "UVit2DModel": (
            {"hidden_size": 32, "cond_embed_dim": 16, "micro_cond_encode_dim": 8, "micro_cond_embed_dim": 8,
             "encoder_hidden_size": 16, "vocab_size": 40, "codebook_size": 32, "in_channels": 32,
             "block_out_channels": 32, "num_res_blocks": 1, "block_num_heads": 2, "num_hidden_layers": 2,
             "num_attention_heads": 2, "intermediate_size": 64, "sample_size": 8},
            {"input_ids": _tokens(2, 8, 8), "encoder_hidden_states": text,
             "pooled_text_emb": _values(2, 16), "micro_conds": _values(2, 1)},
        ),
        "SanaTransformer2DModel": (
            heads | {"in_channels": 4, "out_channels": 4, "num_cross_attention_heads": 2, "sample_size": 8,
                     "cross_attention_head_dim": 16, "cross_attention_dim": 32, "caption_channels": 16},
            latent | {"encoder_hidden_states": text},
        ),
        "StableAudioDiTModel": (
            heads | {"sample_size": 16, "in_channels": 4, "num_key_value_attention_heads": 2,
                     "out_channels": 4, "cross_attention_dim": 32, "time_proj_dim": 8,
                     "global_states_input_dim": 16, "cross_attention_input_dim": 16},
            {"hidden_states": _values(2, 4, 16), "timestep": steps / 10, "encoder_hidden_states": text,
             "global_hidden_states": _values(2, 1, 16),
             "rotary_embedding": (_values(17, 8), _values(17, 8))},
        ),
        "AuraFlowTransformer2DModel": (
            {"sample_size": 8, "num_mmdit_layers": 1, "num_single_dit_layers": 2, "attention_head_dim": 16,
             "num_attention_heads": 2, "joint_attention_dim": 16, "caption_projection_dim": 32,
             "pos_embed_max_size": 16}, latent | {"encoder_hidden_states": text},
        ),
        "WanTransformer3DModel": (
            heads | {"in_channels": 4, "out_channels": 4, "text_dim": 16, "freq_dim": 16, "ffn_dim": 64,
                     "attention_head_dim": 12, "rope_max_seq_len": 32},
            {"hidden_states": _values(2, 4, 2, 8, 8), "timestep": steps, "encoder_hidden_states": text},
        ),
        "StableCascadeUNet": (
            {"in_channels": 4, "out_channels": 4, "timestep_ratio_embedding_dim": 8, "conditioning_dim": 16,
             "block_out_channels": (16, 32), "num_attention_heads": (2, 2),
             "down_num_layers_per_block": (1, 1), "up_num_layers_per_block": (1, 1),
             "clip_text_pooled_in_channels": 16, "clip_text_in_channels": 16, "clip_image_in_channels": 16},
            {"sample": _values(2, 4, 8, 8), "timestep_ratio": steps / 10,
             "clip_text_pooled": _values(2, 1, 16), "clip_text": text, "clip_img": _values(2, 1, 16)},
        ),
    }  # fmt: skip
    for name, (options, inputs) in models.items():
        yield _case(f"diffusers {name}", f"diffusers:{name}", options, inputs)
    ddpm, unet = "denoising_diffusion_pytorch", {"dim": 16, "dim_mults": (1, 2)}
    small = [_values(2, 3, 16, 16), steps]
    yield _case("ddpm Unet", f"{ddpm}:Unet", unet | {"flash_attn": False}, small)
    yield _case("ddpm Unet1D", f"{ddpm}:Unet1D", unet | {"channels": 3}, [_values(2, 3, 16), steps])
    vit = unet | {"channels": 3, "vit_depth": 2, "attn_dim_head": 16, "attn_heads": 2}
    yield _case("ddpm UViT", f"{ddpm}.simple_diffusion:UViT", vit, [small[0], steps / 10])
    karras = {
        "image_size": 16, "dim": 16, "dim_max": 32, "num_downsamples": 1, "num_blocks_per_stage": 1,
        "attn_res": (8,), "fourier_dim": 8, "num_classes": 5, "attn_dim_head": 16,
    }  # fmt: skip
    labelled = {"x": _values(2, 4, 16, 16), "time": steps / 10, "class_labels": steps - 1}
    yield _case("ddpm KarrasUnet", f"{ddpm}:KarrasUnet", karras, labelled | {"class_labels": steps % 5})
    flow = {
        "dim": (3, 16, 16), "num_channels": 32, "num_res_blocks": 1, "channel_mult": (1, 2), "num_heads": 2,
        "attention_resolutions": "8", "use_scale_shift_norm": True, "resblock_updown": True,
    }  # fmt: skip
    yield _case(
        "torchcfm UNetModel", "torchcfm.models.unet:UNetModel", flow, {"t": steps / 10, "x": small[0]}
    )


def _vision() -> Iterator[Case]:
    size = {
        "image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 2, "heads": 2,
        "mlp_dim": 64, "dim_head": 16,
    }  # fmt: skip
    loop = {name: value for name, value in size.items() if name != "depth"}
    looped = loop | {"pre_loop_depth": 1, "num_looped_blocks": 1, "post_loop_depth": 1, "loop_depth": 2}
    look = {
        "dim": 32, "image_size": 32, "num_classes": 10, "depth": 2, "patch_size": 8, "heads": 2,
        "highres_patch_size": 4, "dim_head": 16, "cross_attn_heads": 2, "cross_attn_dim_head": 16,
    }  # fmt: skip
    grid = {
        "num_classes": 10,
        "dim": 32,
        "dim_conv_stem": 32,
        "depth": (1, 1),
        "dim_head": 16,
        "window_size": 4,
    }
    levit = {
        "image_size": 64,
        "num_classes": 10,
        "dim": (16, 24, 32),
        "depth": 1,
        "heads": (1, 2, 2),
        "mlp_mult": 2,
    }
    pixels = {"ndim": 2, "input_shape": (32, 32)} | {n: v for n, v in size.items() if n != "image_size"}
    models: dict[str, tuple[Options, int, int, int]] = {  # options, size of images, adds, doubtful ones
        "ats_vit:ViT": (size | {"max_tokens_per_depth": (8, 4)}, 32, 4, 0),
        "attn_residual_with_dca_simple_vit:SimpleViT": (size, 32, 4, 0),
        "levit:LeViT": (levit, 64, 8, 0),
        "look_vit:LookViT": (look, 32, 10, 0),
        "looped_vit:LoopedViT": (looped, 32, 8, 4),
        "max_vit:MaxViT": (grid, 64, 8, 0),
        "normalized_vit:nViT": (size, 32, 4, 0),
        "simple_vit_attn_residual:SimpleViTAttnResidual": (size, 32, 0, 0),
        "simple_vit_orthog_residual_update:SimpleViT": (size, 32, 4, 0),
        "simple_vit_with_hyper_connections:SimpleViT": (size | {"num_residual_streams": 4}, 32, 4, 0),
        "vit_nd_rotary:ViTND": (pixels, 32, 4, 0),
        "vit_with_keel_post_ln:ViT": (size, 32, 4, 0),
    }  # fmt: skip
    for path, (options, pixel, wanted, doubtful) in models.items():
        name = f"vit-pytorch {path.partition(':')[0]}"
        yield _case(name, f"vit_pytorch.{path}", options, (2, 3, pixel, pixel), wanted, doubtful)


def _sequences() -> Iterator[Case]:
    ids, vectors, deep = _tokens(2, 16), _values(2, 16, 32), {"dim": 32, "depth": 2, "heads": 2}
    words = {"num_tokens": 50, "max_seq_len": 32}

    def decoder(**options: Any) -> nn.Module:
        layers = _make("x_transformers:Decoder", **deep, attn_dim_head=16, **options)
        return _make("x_transformers:TransformerWrapper", **words, attn_layers=layers)

    modern = {"macaron": True, "use_rmsnorm": True, "ff_glu": True, "rotary_pos_emb": True}
    yield Case("x-transformers macaron", partial(decoder, **modern), [ids], _count)
    yield Case("x-transformers gate_residual", partial(decoder, gate_residual=True), [ids], _count)
    scores = partial(decoder, residual_attn=True)  # The second attention adds the scores of the first.
    yield Case("x-transformers residual_attn", scores, [ids], partial(_count, more=1))
    clip = {
        "dim_text": 32, "dim_image": 32, "dim_latent": 32, "num_text_tokens": 50, "text_enc_depth": 2,
        "text_seq_len": 16, "text_heads": 2, "text_dim_head": 16, "visual_enc_depth": 2, "visual_heads": 2,
        "visual_dim_head": 16, "visual_image_size": 32, "visual_patch_size": 8,
    }  # fmt: skip
    pair = {"text": ids, "image": _values(2, 3, 32, 32), "return_encodings": True}
    yield _case("x-clip CLIP", "x_clip:CLIP", clip, pair)
    latents = {
        "num_latents": 8,
        "latent_dim": 32,
        "latent_heads": 2,
        "cross_dim_head": 16,
        "latent_dim_head": 16,
    }
    perceiver = latents | {
        "input_channels": 3, "input_axis": 2, "num_freq_bands": 4, "max_freq": 10.0, "depth": 3,
        "num_classes": 10, "weight_tie_layers": True,
    }  # fmt: skip
    yield _case("perceiver tied", "perceiver_pytorch:Perceiver", perceiver, (2, 16, 16, 3), 12, 8)
    output = latents | {"dim": 16, "queries_dim": 16, "logits_dim": 10, "depth": 2, "decoder_ff": True}
    queries = {"data": _values(2, 20, 16), "queries": _values(6, 16)}
    yield _case("perceiver io", "perceiver_pytorch:PerceiverIO", output, queries, 7)
    yield _case("conformer", "conformer:Conformer", deep | {"dim_head": 16}, (2, 16, 32))
    yield from _recurrent()
    names: dict[str, Options] = {
        "reformer_pytorch:ReformerLM": {"bucket_size": 8, "n_hashes": 2, "causal": True},
        "performer_pytorch:PerformerLM": {"dim_head": 16, "nb_features": 16, "reversible": True},
        "linear_attention_transformer:LinearAttentionTransformerLM": {"causal": True},
        "local_attention.transformer:LocalTransformer": {"dim_head": 16, "local_attn_window_size": 8},
    }
    for path, options in names.items():
        yield _case(path.partition(":")[2], path, deep | words | options, [ids], 4)
    nystrom = deep | {"dim_head": 16, "num_landmarks": 4}
    yield _case("Nystromformer", "nystrom_attention:Nystromformer", nystrom, [vectors], 4)
    gated = {"num_tokens": 50, "dim": 32, "depth": 2, "seq_len": 16}
    yield _case("gMLP", "g_mlp_pytorch:gMLP", gated, [ids], 2)
    mixer = {"image_size": 32, "channels": 3, "patch_size": 8, "dim": 32, "depth": 2, "num_classes": 10}
    yield _case("MLPMixer", "mlp_mixer_pytorch:MLPMixer", mixer, (2, 3, 32, 32), 4)
    table = deep | {"categories": (5, 4, 3), "num_continuous": 6, "dim_out": 2, "dim_head": 16}
    rows = [_tokens(2, 3) % 3, _values(2, 6)]
    yield _case("FTTransformer", "tab_transformer_pytorch:FTTransformer", table, rows, 4)


def _recurrent() -> Iterator[Case]:
    sequence = (2, 8, 32)
    for path, config, doubtful in (
        ("mambapy.mamba:Mamba", "mambapy.mamba:MambaConfig", 2),
        ("mambapy.vim:VMamba", "mambapy.vim:MambaConfig", 4),
    ):
        name, sizes = path.partition(":")[2], {"d_model": 32, "n_layers": 2, "d_state": 4}
        build = partial(_configured, path, config, sizes)
        yield Case(f"mambapy {name}", build, sequence, _count, doubtful)
    jamba = {
        "d_model": 32, "n_layers": 4, "mlp_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
        "num_experts": 2, "num_experts_per_tok": 1, "attn_layer_offset": 1, "attn_layer_period": 2,
        "expert_layer_offset": 1, "expert_layer_period": 2, "d_state": 4,
    }  # fmt: skip
    build = partial(_configured, "mambapy.jamba:Jamba", "mambapy.jamba:JambaLMConfig", jamba)
    yield Case("mambapy Jamba", build, sequence, _count, 2)
    yield Case("xlstm mLSTM", partial(_xlstm, []), sequence, _count, 3)
    yield Case("xlstm sLSTM", partial(_xlstm, [1]), sequence, _count, 2)


def _configured(path: str, config: str, options: Options) -> nn.Module:
    return _make(path, _make(config, **options))


def _xlstm(scalar_at: list[int]) -> nn.Module:
    import xlstm

    matrix = xlstm.mLSTMLayerConfig(conv1d_kernel_size=4, qkv_proj_blocksize=4, num_heads=2)
    scalar = xlstm.sLSTMLayerConfig(backend="vanilla", num_heads=2, conv1d_kernel_size=4)
    forward = xlstm.FeedForwardConfig(proj_factor=1.3, act_fn="gelu")
    config = xlstm.xLSTMBlockStackConfig(
        mlstm_block=xlstm.mLSTMBlockConfig(mlstm=matrix),
        slstm_block=xlstm.sLSTMBlockConfig(slstm=scalar, feedforward=forward) if scalar_at else None,
        context_length=8, num_blocks=3, embedding_dim=32, slstm_at=scalar_at,
    )  # fmt: skip
    model: nn.Module = xlstm.xLSTMBlockStack(config)
    return model


def _sound() -> Iterator[Case]:
    def seanet() -> nn.Module:
        options = {"dimension": 16, "n_filters": 4, "ratios": [4, 2], "lstm": 1, "norm": "time_group_norm"}
        parts = (f"encodec.modules.seanet:SEANet{part}" for part in ("Encoder", "Decoder"))
        return nn.Sequential(*(_make(part, **options) for part in parts))

    def quantizer() -> nn.Module:
        options = {"dim": 8, "codebook_size": 16, "num_quantizers": 2}
        return nn.Sequential(nn.Linear(8, 8), _make("vector_quantize_pytorch:ResidualVQ", **options))

    yield Case("encodec SEANet", seanet, (2, 1, 256), _count)
    yield Case("ResidualVQ", quantizer, (2, 16, 8), _count)
    codec = {
        "encoder_dim": 8, "encoder_rates": [2, 4], "decoder_dim": 16, "decoder_rates": [4, 2],
        "n_codebooks": 2, "codebook_size": 16, "codebook_dim": 4,
    }  # fmt: skip
    yield _case("dac DAC", "dac.model.dac:DAC", codec, {"audio_data": _values(2, 1, 256)})
    autoencoder = {
        "in_channels": 2, "channels": 16, "multipliers": [1, 1, 2], "factors": [4, 2], "num_blocks": [1, 1],
        "resnet_groups": 4,
    }  # fmt: skip
    path = "audio_encoders_pytorch:AutoEncoder1d"
    yield _case("audio-encoders AutoEncoder1d", path, autoencoder, (2, 2, 128))
    unet = {
        "dim": 1, "in_channels": 2, "channels": [8, 16], "factors": [1, 2], "items": [1, 1],
        "attentions": [0, 1], "attention_heads": 2, "attention_features": 8, "resnet_groups": 4,
    }  # fmt: skip
    # Four residual convolutions, two attentions, and a skip around each of two levels.
    noisy = {"x": _values(2, 2, 64), "time": torch.tensor([0.1, 0.7])}
    yield _case("audio-diffusion UNetV0", "audio_diffusion_pytorch:UNetV0", unet, noisy, 8)
    lobes = "speechbrain.lobes.models"
    ecapa = {
        "input_size": 20, "lin_neurons": 10, "channels": [16] * 5, "attention_channels": 8,
        "res2net_scale": 4, "se_channels": 8,
    }  # fmt: skip
    yield _case("speechbrain ECAPA_TDNN", f"{lobes}.ECAPA_TDNN:ECAPA_TDNN", ecapa, (2, 30, 20))
    layers = {"num_layers": 2, "d_model": 32, "nhead": 2, "kernel_size": 5, "attention_type": "regularMHA"}
    path = f"{lobes}.transformer.Conformer:ConformerEncoder"
    yield _case("speechbrain ConformerEncoder", path, layers | {"d_ffn": 64}, [_values(2, 16, 32)])
    mask = {"N": 16, "B": 16, "H": 32, "P": 3, "X": 3, "R": 1, "C": 2}
    yield _case("speechbrain ConvTasNet MaskNet", f"{lobes}.conv_tasnet:MaskNet", mask, (2, 16, 30))

    def sepformer() -> nn.Module:
        block = f"{lobes}.dual_path:SBTransformerBlock"
        inner, outer = (_make(block, 1, 16, 2, d_ffn=32, norm_before=True) for _ in range(2))
        options = {"num_spks": 2, "in_channels": 16, "out_channels": 16, "num_layers": 1, "K": 8}
        path = f"{lobes}.dual_path:Dual_Path_Model"
        return _make(path, intra_model=inner, inter_model=outer, **options)

    yield Case("speechbrain SepFormer", sepformer, (2, 16, 40), _count)
    net, two = "asteroid.masknn", {"in_chan": 16, "n_src": 2}
    sudo = two | {"bn_chan": 8, "num_blocks": 2, "upsampling_depth": 3}
    yield _case("asteroid SuDORMRF", f"{net}.convolutional:SuDORMRF", sudo, (2, 16, 32))
    recurrent = two | {"bn_chan": 8, "hid_size": 8, "chunk_size": 8, "n_repeats": 2}
    yield _case("asteroid DPRNN", f"{net}.recurrent:DPRNN", recurrent, (2, 16, 30))
    waves = {
        "n_src": 2, "n_filters": 16, "kernel_size": 8, "stride": 4, "n_blocks": 2, "n_repeats": 1,
        "bn_chan": 8, "hid_chan": 16, "skip_chan": 8,
    }  # fmt: skip
    yield _case("asteroid ConvTasNet", "asteroid.models:ConvTasNet", waves, (2, 1, 160), 2)


def _signals() -> Iterator[Case]:
    brain = {"n_chans": 4, "n_outputs": 3, "n_times": 500, "sfreq": 100}
    # ContraWR adds in each of its four stages.
    for name, wanted in {
        "ATCNet": None, "BDTCN": None, "CTNet": None, "TCFormer": None, "EEGITNet": None, "ContraWR": 4,
    }.items():  # fmt: skip
        yield _case(f"braindecode {name}", f"braindecode.models:{name}", brain, (2, 4, 500), wanted)
    slim = {"hidden_size": 16, "n_head": 2, "conv_hidden_size": 16}
    dense = [[16, 16]] * 3
    # Beside its layers: PatchTST's second attention adds the scores of the first, and Autoformer the trend.
    models: dict[str, tuple[Options, int, int]] = {
        "NBEATS": ({"mlp_units": dense}, 1, 0),
        "TFT": ({"hidden_size": 16, "n_head": 2}, 1, 0),
        "TiDE": ({"hidden_size": 16, "decoder_output_dim": 4, "temporal_decoder_dim": 8}, 1, 0),
        "PatchTST": (
            {"encoder_layers": 2, "n_heads": 2, "hidden_size": 16, "linear_hidden_size": 32, "patch_len": 4,
             "stride": 2}, 1, 1,
        ),
        "Autoformer": (slim, 1, 0),
        "SOFTS": ({"n_series": 3, "hidden_size": 16, "d_core": 8, "d_ff": 16}, 3, 0),
    }  # fmt: skip
    for name, (options, series, more) in models.items():
        values = _values(2, 16, series)
        batch = {"insample_y": values, "insample_mask": torch.ones_like(values)}
        batch |= dict.fromkeys(("futr_exog", "hist_exog", "stat_exog"))
        build = partial(_make, f"neuralforecast.models:{name}", h=4, input_size=16, max_steps=1, **options)
        yield Case(f"neuralforecast {name}", build, {"windows_batch": batch}, partial(_count, more=more))
    yield Case("chronos Bolt", _chronos, {"context": _values(2, 32)}, _count)
    series = {"c_in": 3, "c_out": 5}
    for name, options, length in (
        ("InceptionTime", {"nf": 4}, 64), ("XceptionTime", {"nf": 4}, 64),
        ("TST", {"seq_len": 32, "n_layers": 2, "d_model": 16, "n_heads": 2, "d_ff": 32}, 32),
    ):  # fmt: skip
        yield _case(f"tsai {name}", f"tsai.models.{name}:{name}", series | options, (2, 3, length))


def _chronos() -> nn.Module:
    from transformers import T5Config

    config = T5Config(
        vocab_size=2, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, is_encoder_decoder=True,
        pad_token_id=0, decoder_start_token_id=0,
    )  # fmt: skip
    config.chronos_config = {
        "context_length": 32, "prediction_length": 8, "input_patch_size": 8, "input_patch_stride": 8,
        "quantiles": [0.1, 0.5, 0.9], "use_reg_token": True,
    }  # fmt: skip
    return _make("chronos.chronos_bolt:ChronosBoltModelForForecasting", config)
