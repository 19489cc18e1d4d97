"""Made-up results: every cell of a preset at a value of our choice, without training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

from skipinit.config import Precision, TrainConfig
from skipinit.paper.cells import ExhibitCell, plan_cells
from skipinit.paper.collect import Collection, Probed, sort_into_sets
from skipinit.paper.exhibits import EXHIBITS
from skipinit.paper.presets import PRESETS
from skipinit.provenance import Provenance
from skipinit.sweeping.store import open_writer
from skipinit.training.protocol import identity
from skipinit.training.records import EpochRecord, Trial
from support.measurement_sets import rows_by_theory

HERE = Provenance("a machine", "a device", {"skipinit": "0.1.0", "torch": "2.13.0"}, "0123abcd")
Scores = tuple[float, float] | None
"""Test accuracy and training loss; None where the run went non-finite."""


def as_published(cell: ExhibitCell) -> Scores:
    """The paper's numbers, and a curve where it prints none."""
    published = cell.exhibit.cells.get((cell.method.name, cell.at))
    if published is None or published.rate is None:
        return None if published else (90.0 - len(cell.method.name) / 10, 0.1 + cell.at / 1000)
    value = published.value
    return value if value > 1.5 else 90.0, min(value, 1.5)


def made_up_trial(config: TrainConfig, scores: Scores) -> Trial:
    last = EpochRecord(config.epochs, scores[1], scores[0], 0.5, config.lr, 1000.0) if scores else None
    return Trial(
        id=identity(config),
        config=config,
        state="finished" if scores else "diverged",
        reason=None if scores else "the loss was not finite at step 3",
        classes=10,
        provenance=HERE,
        started="a",
        ended="b",
        seconds=36.0,
        last=last,
    )


def trials(
    preset: str,
    scores: Callable[[ExhibitCell], Scores] = as_published,
    precision: Precision | None = None,
    names: tuple[str, ...] = tuple(EXHIBITS),
) -> Iterator[Trial]:
    """Every trial of a preset; one of several cells gets what the first of them is."""
    for name in names:
        for cell in plan_cells(EXHIBITS[name], PRESETS[preset], precision):
            few = cell.narrow(seeds=2, around_best=False, first_seed=0)
            yield from (made_up_trial(config, scores(cell)) for config in few.trials)


def make_collection(*groups: Iterator[Trial]) -> Collection:
    """What `collect` would read."""
    by_id = {each.id: each for group in reversed(groups) for each in reversed(list(group))}
    everything = tuple(by_id.values())
    probes = {
        name: Probed(name, "1000 Gaussian vectors", 0, rows, asdict(HERE))
        for name, rows in rows_by_theory().items()
    }
    return Collection(everything, sort_into_sets(everything), probes)


def first_set(collection: Collection) -> tuple[ExhibitCell, ...]:
    """The cells of the least faithful set of measurements: of the only one, where there is one."""
    return next(iter(collection.sets.values()))


def collection_of(value: float | None, exhibit: str = "table1", preset: str = "paper") -> Collection:
    """One table or figure whose trials all have this accuracy, or went non-finite."""
    scores = None if value is None else (value, 1.0)
    return make_collection(trials(preset, lambda _: scores, names=(exhibit,)))


def full_collection() -> Collection:
    """Every table and figure."""
    return make_collection(trials("quick"))


def write_store(folder: Path, made: Iterator[Trial]) -> None:
    """The trials as a folder that `sweep` would have left."""
    with open_writer(folder) as writer:
        writer.put((each, [each.last] if each.last else []) for each in made)
