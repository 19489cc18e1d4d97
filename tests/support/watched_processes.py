"""One of two processes that train a model under DDP, each watching its own share of the batch.

python watched_processes.py RANK FOLDER: writes what this process saw as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F

from skipinit.probing.watch import watch
from skipinit.training.world import leave_group
from support.probe_models import ViT, images


def train(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(ViT(depth=2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, every=2) as watching:
        for step in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(images(8, step)[rank::2]), torch.arange(8)[rank::2]).backward()
            optimizer.step()
    (Path(folder) / f"{rank}.json").write_text(watching.report().to_json())
    leave_group()


if __name__ == "__main__":
    train(int(sys.argv[1]), sys.argv[2])
