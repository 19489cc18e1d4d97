"""Photographs decoded per second, from files to batches, beside torchvision's ImageFolder if installed.

    python benchmarks/imagenet_pipeline.py PATH/TO/imagenet --workers 0 4 16 --json pipeline.json

Both sides do the work of training: decode, random-resized crop to 224, flip, batch as uint8.
`--resize 500 375` first writes the photographs anew at that size, about ImageNet's usual one, into a
temporary folder.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import tyro
from PIL import Image
from rich.console import Console
from rich.table import Table

from skipinit.data import RandomCrop, epoch_plan, folder_batches, open_folder
from skipinit.provenance import Provenance


@dataclass(frozen=True)
class Options:
    """What to decode, and with how many processes."""

    folder: tyro.conf.Positional[str]
    workers: tuple[int, ...] = (0, 2)
    """0 is the process itself: images per second and core."""
    images: int = 2000
    batch_size: int = 50
    repeats: int = 3
    resize: tuple[int, int] | None = None
    json: Path | None = None


def ours(folder: str, rows: list[list[int]], workers: int) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    return folder_batches(open_folder(folder).train, rows, RandomCrop(seed=0, epoch=0), workers)


def torchvisions(
    folder: str, rows: list[list[int]], workers: int
) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    from torchvision import datasets, transforms

    crop = [transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
    images = datasets.ImageFolder(f"{folder}/train", transforms.Compose(crop))
    return torch.utils.data.DataLoader(images, batch_sampler=rows, num_workers=workers)


def contestants() -> dict[str, Callable[..., Iterable[tuple[torch.Tensor, torch.Tensor]]]]:
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):  # RuntimeError: a wheel built for another torch
        return {"skipinit": ours}
    return {"skipinit": ours, "torchvision ImageFolder": torchvisions}


def images_per_second(batches: Iterable[tuple[torch.Tensor, torch.Tensor]], count: int) -> float:
    start = time.perf_counter()
    served = sum(len(labels) for _, labels in batches)
    assert served == count
    return count / (time.perf_counter() - start)


def write_resized(folder: str, size: tuple[int, int], into: str) -> str:
    for file in (path for split in ("train", "val") for path in Path(folder, split).glob("*/*")):
        copy = Path(into) / file.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        Image.open(file).convert("RGB").resize(size).save(copy, "JPEG", quality=92)
    return into


def measure(options: Options, folder: str) -> list[dict[str, object]]:
    total = len(open_folder(folder).train)
    epochs = -(-options.images // total)
    order = torch.cat([epoch_plan(0, epoch, total).order for epoch in range(epochs)])[: options.images]
    rows = [row.tolist() for row in order.split(options.batch_size)]
    results: list[dict[str, object]] = []
    for workers in options.workers:
        for name, pipeline in contestants().items():
            # The best of a few passes: what else the machine does can only slow one down.
            rates = [
                images_per_second(pipeline(folder, rows, workers), len(order)) for _ in range(options.repeats)
            ]
            results.append({"pipeline": name, "workers": workers, "images_per_second": round(max(rates), 1)})
    return results


def main() -> None:
    options = tyro.cli(Options, description=__doc__)
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_resized(options.folder, options.resize, scratch) if options.resize else options.folder
        results = measure(options, folder)
    table = Table(
        "pipeline",
        "workers",
        "images/s",
        title=f"{options.images} photographs, {options.resize or 'as they are'}",
    )
    for row in results:
        table.add_row(*map(str, row.values()))
    Console().print(table)
    if options.json:
        content = {
            "command": " ".join(["python benchmarks/imagenet_pipeline.py", *sys.argv[1:]]),
            "ran_on": asdict(Provenance.here("cpu")),
            "rows": results,
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
