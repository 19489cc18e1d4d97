"""Made-up results: every cell of a preset at a value of our choice, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from skipinit.config import TrainConfig
from skipinit.paper.collect import Collection, Probed, measured_sets
from skipinit.paper.presets import PRESETS, Precision
from skipinit.paper.published import Address, TunedCell, exhibits
from skipinit.paper.recipes import Order, plan_exhibit
from skipinit.provenance import Provenance
from skipinit.sweeping.store import open_writer
from skipinit.training.protocol import identity
from skipinit.training.records import EpochRecord, Trial
from support.paper_worlds import rows_by_theory

HERE = Provenance("a machine", "a device", {"skipinit": "0.1.0", "torch": "2.13.0"}, "0123abcd")
Result = tuple[float, float] | None
"""Test accuracy and training loss; None where the run went non-finite."""


def as_published(address: Address) -> Result:
    """The paper's numbers, and a curve where it prints none."""
    cell = exhibits()[address.exhibit].cells.get((address.method, address.at))
    if isinstance(cell, TunedCell):
        return cell.value if cell.value > 1.5 else 90.0, min(cell.value, 1.5)
    return (90.0 - len(address.method) / 10, 0.1 + address.at / 1000) if cell is None else None


def trial(config: TrainConfig, result: Result) -> Trial:
    last = EpochRecord(config.epochs, result[1], result[0], 0.5, config.lr, 1000.0) if result else None
    state, reason = ("finished", None) if result else ("diverged", "the loss was not finite at step 3")
    return Trial(identity(config), config, state, reason, None, 10, HERE, "a", "b", 36.0, last)


def trials(
    preset: str,
    result: Callable[[Address], Result] = as_published,
    precision: Precision | None = None,
    names: tuple[str, ...] = tuple(exhibits()),
) -> Iterator[Trial]:
    """Every trial of a preset; one of several cells gets what the first of them is."""
    for name in names:
        for plan in plan_exhibit(name, Order(PRESETS[preset], precision, seeds=2)):
            yield from (trial(config, result(plan.address)) for config in plan.grid().trials)


def make_collection(*groups: Iterator[Trial]) -> Collection:
    """What `collect` would read."""
    by_id = {each.id: each for group in reversed(groups) for each in reversed(list(group))}
    everything = tuple(by_id.values())
    probes = {
        name: Probed(name, "1000 Gaussian vectors", 0, rows, asdict(HERE))
        for name, rows in rows_by_theory().items()
    }
    return Collection(everything, tuple(measured_sets(everything)), probes)


def full_collection() -> Collection:
    """Every table and figure."""
    return make_collection(trials("quick"))


def write_store(folder: Path, made: Iterator[Trial]) -> None:
    """The trials as a folder that `sweep` would have left."""
    with open_writer(folder) as writer:
        writer.put((each, [each.last] if each.last else []) for each in made)
