"""One training run: a network, its optimizer, its batches, its random generator, and its position."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from ..config import TrainConfig
from ..data.augment import mix
from ..errors import ConfigError, DataError
from ..nets.blocks import Dropout
from ..nets.create import ResidualNet, build
from ..nets.own import is_own
from ..probing.history import Measurement
from .control import say_once
from .optimizer import SGD, learning_rates, momentum_buffers
from .own_models import build_own, drawing_from
from .records import EpochRecord
from .sources import Source, summed_cross_entropy
from .world import RunningStatistics, World, by_batch_at_test, ghost_of, share_gradients, share_statistics

if TYPE_CHECKING:
    from .kernels.bfloat16 import RoundedWeights


_MOST_SHAPES = 64
"""Compiled versions of a block, one per shape and mode. torch's limit of 8 is too low for a sweep."""


class Run:
    """A run's numbers depend on its config alone, never on which runs share its device."""

    def __init__(self, config: TrainConfig, source: Source, world: World, micro_batch: int) -> None:
        self.config, self.source, self.world = config, source, world
        device = world.device
        self.own = is_own(config.model.name)
        """Whether the network is the user's own: it runs eagerly and draws from torch's generator."""
        self.model: nn.Module = (
            build_own(config, source.shape)
            if self.own
            else build(config.model, seed=mix("weights", config.seed))
        )
        self.at_once = micro_batch
        """The most examples on the device at once, unless batch statistics need more."""
        self.micro_batch = _fit_micro_batch(self.model, config, world, micro_batch)
        self.scores_by_batch = any(map(by_batch_at_test, _batch_norms(self.model)))
        """Whether the logits of a test image depend on the other images of its batch."""
        layout = torch.preserve_format if self.own else world.memory_format
        self.model.to(device, memory_format=layout)  # type: ignore[call-overload]
        self.network: nn.Module = self.model
        self.rounded: RoundedWeights | None = None
        if device.type == "cuda" and self.own:
            say_once(f"{config.model.name} runs eagerly, neither compiled nor captured in a CUDA graph")
        elif device.type == "cuda" and isinstance(self.model, ResidualNet):
            self._compile(self.model)
        if world.size > 1:
            share_statistics(self.model, world)
            self.network = share_gradients(self.model)
        # On a GPU the small operations around the network become few kernels.
        compiled: Callable[[Any], Any] = torch.compile if device.type == "cuda" else lambda function: function
        self._loss, self._count = compiled(_mean_loss), compiled(_count)
        self.rates = learning_rates(config, source.steps_per_epoch)
        self.rate_table = torch.tensor(self.rates, dtype=torch.float32, device=device)
        self.lr = torch.zeros((), device=device)
        self.optimizer = SGD(self.model, config, self.lr)
        self.statistics = RunningStatistics(self.model, world, config.batch_size)
        dropouts = [module for module in self.model.modules() if isinstance(module, Dropout)]
        self.dropouts = [] if self.own else dropouts
        self.generator = torch.Generator(device).manual_seed(mix("dropout", config.seed))
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        """Steps taken. On the device, so that a captured graph counts them itself."""
        self.losses = torch.zeros(source.steps_per_epoch, device=device)
        """The loss of every batch of the epoch."""
        self.records: list[EpochRecord] = []
        self.measurements: list[Measurement] = []
        """Of watched steps; the observer that stores them clears the list."""

    def _compile(self, model: ResidualNet) -> None:
        """Compile stem, blocks and head; in bfloat16 use the kernels of `kernels/`.

        Blocks of one shape share compiled code, so depth costs no compile time.
        """
        if self.config.precision == "bfloat16":
            # They need Triton, which only comes with GPU builds of torch.
            from .kernels.bfloat16 import RoundedWeights, chain_blocks

            self.rounded = RoundedWeights(model, chain_blocks(model.blocks))
            if self.config.watch is not None:
                say_once(
                    "in bfloat16 on a GPU blocks run as chains, which cannot be watched; in tf32 they can"
                )
        torch._dynamo.config.recompile_limit = _MOST_SHAPES
        for piece in (model.stem, *model.blocks, model.head):
            piece.compile(dynamic=False)

    def train_step(self) -> None:
        """One update from one batch. Only the device is involved, so a CUDA graph can replay it."""
        images, labels = self.source.batch(self.step)
        self.prepare_weights()
        self.optimizer.zero_grad(set_to_none=True)
        before = self.statistics.remember()
        with self.arithmetic(), self.randomness():
            loss = self._accumulate_gradients(images, labels)
        self.statistics.join(before)
        self._count(self.world.sum(loss), self.step, self.losses, self.lr, self.rate_table)
        self.optimizer.step()

    def is_watched(self, position: int) -> bool:
        """Whether to measure the step after `position` others; only the first process measures."""
        every = self.config.watch
        return every is not None and position % every == 0 and self.world.leads and not self.rounded

    def measured_step(self, position: int) -> None:
        """The step after `position` others, under a watch.

        On the CPU none of its numbers change. On a GPU it is taken beside the graph, and rounds differently.
        """
        from ..probing.watch import Watch  # only where it is needed

        watch = Watch(self.network, every=1)
        watch.step = position
        with watch:
            self.train_step()
        seen = watch.report()
        self.measurements.extend(seen.measurements)
        if seen.remark:
            say_once(f"{self.config.model.name}: nothing to watch. {seen.remark}")

    def prepare_weights(self) -> None:
        """Update the bfloat16 copies of the weights. Call it before every use of the network."""
        if self.rounded:
            self.rounded.refresh()

    def _accumulate_gradients(self, images: Tensor, labels: Tensor) -> Tensor:
        """Compute the gradient of the batch's mean loss; returns this process's part of that loss."""
        losses = []
        parts = [
            *zip(images.split(self.micro_batch), labels.split(self.micro_batch), self._masks(), strict=True)
        ]
        for number, (some, their_labels, mask) in enumerate(parts, 1):
            for dropout in self.dropouts:
                dropout.mask = mask
            with self._exchange(last=number == len(parts)):
                loss = self._loss(self.network(some), their_labels, self.config.batch_size)
                # Several processes average their gradients; the loss is divided by the global batch already.
                (loss * self.world.size if self.world.size > 1 else loss).backward()
            losses.append(loss.detach())
        total: Tensor = functools.reduce(torch.add, losses)
        return total

    def _masks(self) -> Iterator[Tensor | None]:
        """The dropout masks of the micro-batches, drawn at once for the global batch."""
        local = self.config.batch_size // self.world.size
        if not self.dropouts:
            yield from [None] * (-(-local // self.micro_batch))
            return
        (dropout,) = self.dropouts
        shape = (self.config.batch_size, dropout.features)
        chance = torch.rand(shape, generator=self.generator, device=self.world.device)
        yield from self.world.share(chance >= dropout.p).split(self.micro_batch)

    def _exchange(self, last: bool) -> AbstractContextManager[None]:
        """Processes exchange gradients once a step, with the last micro-batch."""
        if isinstance(self.network, DistributedDataParallel) and not last:
            return self.network.no_sync()
        return nullcontext()

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """The config's precision; on a GPU, cuDNN chooses its kernels by trying them."""
        precision = self.config.precision
        kind = self.world.device.type
        # No cache: a captured graph must hold its own casts.
        autocast = torch.autocast(kind, torch.bfloat16, enabled=precision == "bfloat16", cache_enabled=False)
        cudnn = torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=precision != "float32")
        with cudnn, autocast:
            yield

    def randomness(self) -> AbstractContextManager[None]:
        """Inside, a model of the user's own draws from the generator of the run.

        Several processes each draw from a generator seeded by step and rank: a checkpoint holds only one.
        """
        if not self.own:
            return nullcontext()
        if self.world.size == 1:
            return drawing_from(self.generator)
        seed = mix("dropout", self.config.seed, self.position, self.world.rank)
        return drawing_from(torch.Generator(self.world.device).manual_seed(seed))

    def epoch_losses(self) -> Tensor:
        """The losses of this epoch's batches so far, on the host."""
        taken = self.position % self.source.steps_per_epoch or self.source.steps_per_epoch
        return self.losses[:taken].cpu()

    @property
    def position(self) -> int:
        """Steps taken, on the host; waits for the device."""
        return int(self.step)

    @property
    def total_steps(self) -> int:
        """Steps of the whole run."""
        return len(self.rates)

    def changing_tensors(self) -> list[Tensor]:
        """All tensors that a step changes."""
        momentum = momentum_buffers(self.model, self.optimizer)
        return [*self.model.state_dict().values(), *momentum.values(), self.step, self.losses]

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs, by name, as tensors and plain values."""
        return {
            "model": _on_cpu(self.model.state_dict()),
            "momentum": _on_cpu(momentum_buffers(self.model, self.optimizer)),
            "step": self.position,
            "losses": self.losses.cpu(),
            "generator": {"device": self.world.device.type, "state": self.generator.get_state()},
            "records": [asdict(record) for record in self.records],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Load a state. One of another kind of device is refused if the run draws random numbers."""
        device, generator = state["generator"]["device"], state["generator"]["state"]
        if device == self.world.device.type:
            self.generator.set_state(generator)
        elif self.dropouts or self.own:
            what = "a model of your own" if self.own else "dropout"
            raise ConfigError(
                f"this run has {what} and was started on {device}; {self.world.device.type} cannot continue "
                f"its random numbers: use --device {device}"
            )
        if len(state["losses"]) != len(self.losses):
            raise DataError(
                f"the checkpoint has {len(state['losses'])} batches per epoch, {self.config.data} has "
                f"{len(self.losses)}"
            )
        restore_network(self.model, state)
        _copy(state["momentum"], momentum_buffers(self.model, self.optimizer))
        self.step.fill_(state["step"])
        self.losses.copy_(state["losses"])
        self.records = [EpochRecord(**record) for record in state["records"]]


def restore_network(model: nn.Module, state: dict[str, Any]) -> None:
    """Load the weights of a run's state. They fit any kind of device, unlike the generator's state."""
    _copy(state["model"], model.state_dict())


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in tensors.items()}


def _copy(saved: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    """In place, because a captured graph uses these tensors."""
    if odd := sorted(saved.keys() ^ tensors.keys()):
        owner = "checkpoint" if odd[0] in saved else "model"
        raise DataError(f"only the {owner} has {odd[0]}")
    for name, tensor in tensors.items():
        if saved[name].shape != tensor.shape:  # torch would broadcast
            shapes = f"{tuple(saved[name].shape)} in the checkpoint, {tuple(tensor.shape)} in the model"
            raise DataError(f"{name} has shape {shapes}")
        tensor.copy_(saved[name])


def _mean_loss(logits: Tensor, labels: Tensor, batch_size: int) -> Tensor:
    return summed_cross_entropy(logits, labels) / batch_size


def _count(loss: Tensor, step: Tensor, losses: Tensor, lr: Tensor, rates: Tensor) -> None:
    """Store the step's loss, set its learning rate and count the step.

    The warm-up of a graph and the timing of a pack may step beyond the last step, so indices wrap around.
    """
    losses.index_copy_(0, step.view(1) % len(losses), loss.view(1))
    lr.copy_(rates.index_select(0, step.view(1) % len(rates)).squeeze())
    step += 1


def _batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def _fit_micro_batch(model: nn.Module, config: TrainConfig, world: World, limit: int) -> int:
    """The most examples, up to `limit`, that are whole ghosts of every norm; at least one ghost.

    The last micro-batch may have fewer.
    """
    if config.batch_size % world.size:
        raise ConfigError(f"{world.size} processes cannot share a batch of {config.batch_size} evenly")
    local = config.batch_size // world.size
    ghosts = {ghost_of(norm) or local for norm in _batch_norms(model)}
    for ghost in sorted(ghosts):
        if local % ghost:
            raise ConfigError(f"ghost_batch {ghost} does not divide the {local} examples of each process")
    unit = math.lcm(*ghosts)
    return min(max(limit // unit, 1) * unit, local)
