"""On the CPU nothing that trains is channels last: there a kernel of torch 2.13 corrupts the heap.

It is the one for CPUs without AVX-512; elsewhere it is chosen by two variables.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch

from skipinit.training.world import World

_WORLD = World(torch.device("cpu"))
_CODE = """if True:
    import torch
    from torch import nn

    import skipinit
    from skipinit.training.world import World
    from support.probe_models import PreActivationBlock

    world = World(torch.device("cpu"))
    last = torch.channels_last

    def train(model, images):
        model.to(memory_format=world.memory_format)
        for _ in range(50):
            model(world.lay_out(images)).square().mean().backward()

    train(nn.Conv2d(6, 12, 1, 2).to(memory_format=last), torch.randn(64, 6, 8, 8).to(memory_format=last))

    digits = torch.randn(64, 64).as_strided((64, 1, 8, 8), (64, 1, 8, 1))
    blocks = PreActivationBlock(6, 12, 2), PreActivationBlock(12, 12, 1)
    model = nn.Sequential(nn.Conv2d(1, 6, 3, 1, 1), *blocks, nn.Flatten(), nn.Linear(192, 10))
    train(skipinit.convert(model, world.lay_out(digits)).model.to(memory_format=last), digits)

    for scheme in ("skipinit", "batchnorm"):
        model = skipinit.ModelConfig("wrn10_1", scheme, in_channels=1)
        config = skipinit.make_train_config(model, "digits", epochs=1)
        assert skipinit.train(config, device="cpu", progress=False).state == "finished"
"""


def test_without_avx512_nothing_that_trains_meets_the_broken_kernel() -> None:
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    older = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _CODE],
        env=os.environ | older | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_strides_are_those_of_an_ordinary_tensor() -> None:
    one_channel = torch.arange(4 * 64.0).as_strided((4, 1, 8, 8), (64, 1, 8, 1))
    assert one_channel.is_contiguous(), "which is why `contiguous` would not help"
    three = torch.randn(4, 8, 8, 3).permute(0, 3, 1, 2)
    for images in (one_channel, three, three.contiguous()):
        laid_out = _WORLD.lay_out(images)
        assert laid_out.stride() == torch.empty(images.shape).stride()
        assert torch.equal(laid_out, images)
    plain = torch.randn(4, 3, 8, 8)
    assert _WORLD.lay_out(plain) is plain, "nothing is copied for nothing"
