"""Ten short trainings whose losses are kept beside this file; no bit of them may change with the code.

    python tests/support/golden.py            # compare with golden.json
    python tests/support/golden.py --write    # make it anew, where a change of numbers is meant

Another CPU rounds otherwise, so each machine's losses are kept under what decides them.
"""

from __future__ import annotations

import json
import platform
import re
import sys
from pathlib import Path

import torch

import skipinit

FILE = Path(__file__).with_suffix(".json")

_CONFIGS: dict[str, tuple[str, str, dict[str, object], dict[str, object]]] = {
    "batch norm": ("wrn10_1", "digits", {"scheme": "batchnorm"}, {"lr": 0.05}),
    "ghost batch norm": ("wrn10_2", "digits", {"scheme": "batchnorm", "ghost_batch": 16}, {"lr": 0.05}),
    "no normalization": ("wrn16_1", "digits", {"scheme": "none"}, {"lr": 0.01}),
    "skipinit": ("wrn22_1", "digits", {"scheme": "skipinit"}, {"lr": 0.025}),
    "skipinit, damped": (
        "wrn16_2", "digits16", {"scheme": "skipinit", "alpha": "1/sqrt(d)"},
        {"lr": 0.25, "dampening": 0.9, "augment": True, "crop_padding": "reflect"},
    ),
    "regularized skipinit": (
        "wrn10_1", "digits", {"scheme": "regularized-skipinit"}, {"lr": 0.025, "seed": 3}
    ),
    "divide by root two": ("wrn10_1", "digits16", {"scheme": "divide-sqrt2"}, {"lr": 0.02, "augment": True}),
    "norm at the block's end": ("wrn10_1", "digits", {"scheme": "batchnorm-block-end"}, {"lr": 0.05}),
    "fixup": ("wrn10_1", "digits", {"scheme": "fixup"}, {"lr": 0.05, "l2": 0.0, "clean_train_loss": True}),
    "bfloat16": ("wrn10_1", "digits", {"scheme": "skipinit"}, {"lr": 0.025, "precision": "bfloat16"}),
}  # fmt: skip


def losses() -> dict[str, list[str]]:
    """Training and test loss of every epoch, exactly, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {name: _losses(*parts) for name, parts in _CONFIGS.items()}
    finally:
        torch.set_num_threads(threads)


def _losses(model: str, data: str, network: dict[str, object], training: dict[str, object]) -> list[str]:
    config = skipinit.make_train_config(
        skipinit.ModelConfig(model, in_channels=1, **network), data, epochs=2, batch_size=64, **training
    )
    result = skipinit.train(config, device="cpu", progress=False)
    return [loss.hex() for record in result.records for loss in (record.train_loss, record.test_loss)]


def machine() -> str:
    """What decides how sums are rounded."""
    info = Path("/proc/cpuinfo")
    name = re.search(r"model name\s*: (.*)", info.read_text()) if info.exists() else None
    isa = torch.backends.cpu.get_cpu_capability()
    return f"{name[1] if name else platform.processor()}, {isa}, torch {torch.__version__}"


if __name__ == "__main__":
    kept = json.loads(FILE.read_text()) if FILE.exists() else {}
    found = losses()
    if "--write" in sys.argv:
        FILE.write_text(json.dumps({**kept, machine(): found}, indent=1) + "\n")
    else:
        assert kept[machine()] == found, "the losses have changed"
    print(f"{len(found)} configs on {machine()}")
