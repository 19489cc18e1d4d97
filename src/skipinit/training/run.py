"""One training run: a network, its optimizer, its batches, its random generator, and its position."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.sgd import sgd

from ..config import TrainConfig
from ..data.images import mix
from ..errors import ConfigError
from ..nets.blocks import Dropout
from ..nets.create import ResidualNet, build
from ..nets.layers import l2_parameters
from ..nets.own import is_own
from ..probing.history import Measurement
from .control import say_once
from .own_models import build_own, check_step, drawing_from
from .protocol import learning_rates
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
        """Whether to measure the step after `position` others."""
        every = self.config.watch
        return every is not None and position % every == 0 and not self.rounded

    def measured_step(self, position: int) -> None:
        """The step after `position` others, under a watch.

        On the CPU none of its numbers change. On a GPU it is taken beside the graph, and rounds differently.
        All processes take it, though the first one's measurements count: what is compiled is measured in a
        pass of its own, in which batch norms wait for the other processes, too.
        """
        from ..probing.watch import Watch  # only where it is needed

        watch = Watch(self.network, every=1)
        watch.step = position
        with watch:
            self.train_step()
        seen = watch.report()
        if not self.world.leads:
            return
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
                logits = self.network(some)
                if self.own:
                    check_step(logits, len(some), self.config)
                loss = self._loss(logits, their_labels, self.config.batch_size)
                # Several processes average their gradients; the loss is divided by the global batch already.
                (loss * self.world.size if self.world.size > 1 else loss).backward()
            losses.append(loss.detach())
        if self.world.size > 1:
            self._require_gradients()
        total: Tensor = functools.reduce(torch.add, losses)
        return total

    def _require_gradients(self) -> None:
        """Refuse a model of which a part is not in the loss: its gradients would not be exchanged."""
        moved = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        if all(parameter.grad is not None for parameter in moved if parameter.requires_grad):
            return
        unused = next(n for n, p in self.model.named_parameters() if p.requires_grad and p.grad is None)
        raise ConfigError(
            f"{self.config.model.name}: its loss does not depend on {unused}, and several processes "
            "exchange the gradients of all parameters; set its requires_grad to False, or train in "
            "one process"
        )

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


class SGD(Optimizer):
    """g <- g + l2 w;  v <- momentum v + (1 - dampening) g;  w <- w - lr v;  v = 0 at the start

    torch's own SGD sets v to the first gradient without dampening, ten times too large at dampening 0.9, and
    ignores dampening without momentum. Its methods import torch's compiler, which takes more than a second;
    the function that they call does not.

    `lr` is a tensor on the model's device, so that a captured graph can change it.
    """

    def __init__(self, model: nn.Module, config: TrainConfig, lr: Tensor) -> None:
        decayed = l2_parameters(model)
        rest = [parameter for name, parameter in model.named_parameters() if name not in decayed]
        groups = [{"params": [*decayed.values()], "l2": config.l2}, {"params": rest, "l2": 0.0}]
        super().__init__(groups, {})
        self.config, self.lr = config, lr
        if config.momentum:
            for parameter in model.parameters():
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Called by torch with each group of parameters; torch's own method imports its compiler."""
        self.param_groups.append(param_group)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient."""
        momentum, dampening = self.config.momentum, self.config.dampening
        for group in self.param_groups:
            moved = [parameter for parameter in group["params"] if parameter.grad is not None]
            sgd(
                moved,
                [parameter.grad for parameter in moved],
                [self.state[parameter]["momentum_buffer"] for parameter in moved] if momentum else [],
                weight_decay=group["l2"],
                momentum=momentum,
                lr=self.lr if momentum else self.lr * (1 - dampening),  # type: ignore[arg-type]
                dampening=dampening,
                nesterov=False,
                maximize=False,
                fused=True,
            )


def momentum_buffers(model: nn.Module, optimizer: SGD) -> dict[str, Tensor]:
    """The velocities by the names of their parameters; none without momentum."""
    return {
        name: optimizer.state[parameter]["momentum_buffer"]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
    }
