"""Hugging Face's own models, tiny: adds as their configuration counts them, every branch at nothing."""

from __future__ import annotations

import pytest
import torch

from skipinit import convert, find_residual_adds
from support.stubs import stub_torchvision

IDS = torch.arange(20).view(2, 10) % 7 + 3
TEXT = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
BOTH = TEXT | {"decoder_input_ids": IDS}
SIZES = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64,
}  # fmt: skip
GPT = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4}
SEQUENCES = {
    "vocab_size": 100, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
}  # fmt: skip
T5 = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
AUDIO = SIZES | {
    "num_hidden_layers": 4, "conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "layerdrop": 0.5,
}  # fmt: skip
FALCON = {name: value for name, value in SIZES.items() if name != "intermediate_size"}
EXPERTS = SIZES | {"num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "pad_token_id": 0}

# family: (configuration, inputs, residual adds)
FAMILIES = {
    "Bert": (SIZES, TEXT, 4),
    "GPT2": (GPT, TEXT, 4),
    "GPTJ": (GPT | {"rotary_dim": 4}, TEXT, 2),  # Attention and MLP are one sum.
    "GPTNeoX": (SIZES, TEXT, 2),
    "Falcon": (FALCON, TEXT, 2),
    "Gemma2": (SIZES | {"num_key_value_heads": 4, "head_dim": 8}, TEXT, 4),  # Norms on both sides.
    "GptOss": (EXPERTS, TEXT, 4),  # Its experts have biases.
    "T5": (T5, BOTH, 2 * 2 + 2 * 3),
    "Bart": (SEQUENCES, BOTH, 2 * 2 + 2 * 3),
    "Wav2Vec2": (AUDIO, {"input_values": torch.linspace(-1, 1, 2000).repeat(2, 1)}, 1 + 4 * 2),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("ignore")
def test_adds_are_those_of_the_configuration_and_all_are_scaled(family):
    stub_torchvision()
    transformers = pytest.importorskip("transformers", exc_type=(ImportError, RuntimeError))
    options, inputs, count = FAMILIES[family]
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**options))
    adds = find_residual_adds(model.train(), inputs)
    assert [add.doubt for add in adds] == [None] * count
    conversion = convert(model, inputs, seed=0, strict=True)
    assert conversion.num_blocks == count
    assert [row.branch_share for row in conversion.after.rows] == [0.0] * count
