"""The numbers of ten short trainings stay what they are, to the bit, whatever is done to the code."""

from __future__ import annotations

import json

import pytest

from support.golden import FILE, losses, machine

ROUNDING = 0.02
"""Two epochs multiply a difference in the last bit to 4e-3 between two instruction sets of one CPU."""


def test_losses_are_those_kept() -> None:
    kept, found = json.loads(FILE.read_text()), losses()
    if machine() in kept:
        assert found == kept[machine()]
        return
    for name, expected in next(iter(kept.values())).items():
        values = [float.fromhex(loss) for loss in found[name]]
        assert values == pytest.approx([float.fromhex(loss) for loss in expected], rel=ROUNDING), name
