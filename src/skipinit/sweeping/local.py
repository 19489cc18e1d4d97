"""The engine `local`: this process trains, one pack after the other."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import TrainConfig
from ..training.stop import Stop
from .keeper import Keeper
from .trainer import Options, Trainer, Workplace


class Local:
    """This process and one device."""

    def __init__(self, device: str) -> None:
        self.place = Workplace(device)

    def train(
        self, groups: Sequence[Sequence[TrainConfig]], options: Options, keeper: Keeper, stop: Stop
    ) -> None:
        """Give every trial its result, or its failure, until asked to stop."""
        trainer = Trainer(self.place, options, keeper.checkpoints.load, keeper.take, stop)
        for members in groups:
            trainer.train(members)
