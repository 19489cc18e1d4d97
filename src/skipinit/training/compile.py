"""Compiling a network piece by piece: once per shape of block, however many there are."""

from __future__ import annotations

import torch

from ..nets.network import ResidualNet

_MOST_SHAPES = 64
"""Kinds of block times modes that one process may meet; torch's own limit of 8 is for accidents."""


def compile_pieces(model: ResidualNet) -> None:
    """Let stem, blocks and head run compiled. Blocks of one shape share code: depth costs no compile time."""
    torch._dynamo.config.recompile_limit = _MOST_SHAPES
    for piece in (model.stem, *model.blocks, model.head):
        piece.compile(dynamic=False)
