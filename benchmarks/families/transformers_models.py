"""Small models of Hugging Face's transformers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from case import Case, stub_torchvision
from torch import nn

LIBRARIES = ("transformers",)
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


def cases() -> Iterator[Case]:
    """All of them."""
    stub_torchvision()
    import transformers

    transformers.logging.set_verbosity_error()
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
