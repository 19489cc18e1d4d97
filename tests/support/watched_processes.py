"""One of two processes that train a model together and watch it.

python watched_processes.py RANK FOLDER WAY: writes what this process saw as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

from skipinit.converting.convert import convert
from skipinit.probing.watch import watch
from skipinit.training.world import leave_group
from support.convert_models import ResNet18
from support.probe_models import ViT, images


def make(way: str) -> nn.Module:
    """The model before it is spread over the processes."""
    torch.manual_seed(0)
    if way == "ddp":
        return ViT(depth=2)
    model = ResNet18(4) if way == "sharded" else ViT(depth=2)
    return convert(model, images(2), alpha=0.5).model.double()


def spread(model: nn.Module, way: str) -> nn.Module:
    if way == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if way == "sharded":
        scalars = {p for p in model.parameters() if p.dim() == 0}
        for group in (model.layer2, model.layer3):
            fully_shard(group, ignored_params=scalars)
        return fully_shard(model, ignored_params=scalars)
    for block in model.blocks:
        parallelize_module(
            block.mlp, init_device_mesh("cpu", (2,)), {"0": ColwiseParallel(), "2": RowwiseParallel()}
        )
    return model


def train(rank: int, folder: str, way: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    model = spread(make(way), way)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
    # The parts of a sharded model see the whole batch, which one process alone could see, too.
    share = slice(rank, None, 2) if way == "ddp" else slice(None)
    with watch(model, every=2) as watching:
        for step in range(3):
            optimizer.zero_grad()
            batch = images(8, step)[share].to(next(model.parameters()).dtype)
            F.cross_entropy(model(batch), torch.arange(8)[share]).backward()
            optimizer.step()
    (Path(folder) / f"{rank}.json").write_text(watching.report().to_json())
    leave_group()


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2], sys.argv[3])
