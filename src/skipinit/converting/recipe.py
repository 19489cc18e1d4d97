"""Train a network without norms: which parameters decay, clipped gradients, a warm-up, and the rate to use.

Nothing bounds the size of a step through an unnormalized network. At a rate that suits batch norm a few large
gradients end in dead units, and the loss stays at chance. So the recipe bounds the step, and `find_rate`
measures the rate. The user provides batches and a loss.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from ..errors import ConfigError, SkipinitError, need, one_line
from ..nets.layers import l2_parameters
from ..notation import plain
from ..probing.forward import check_model, copy_model, preserve_state
from ..probing.inputs import arguments_of
from .plan import is_number, require

Loss = Callable[[Any, Any], Tensor]
_CHECKED = 50
"""Steps between two checks of the loss."""
_STUCK_WITHIN = 0.02
"""A relative distance from the loss of chance that is fluctuation, not progress."""
_LOWEST, _HIGHEST = -12, 3
"""The rates that are searched, as powers of 2."""


@dataclass
class Recipe:
    """SGD for unnormalized networks. Call `step` with the loss of each batch."""

    optimizer: torch.optim.SGD
    schedule: LambdaLR = field(repr=False)
    parameters: list[nn.Parameter] = field(repr=False)
    clip_norm: float
    classes: int | None
    warm_up: int
    steps: int | None
    losses: list[float] = field(default_factory=list, repr=False)
    """The loss of every step so far."""

    def step(self, loss: Tensor) -> float:
        """Clear the gradients, run backward, clip the gradient and update; returns the loss.

        Every 50 steps a warning says whether the loss is not finite and, after the warm-up, whether the
        network does not learn. Another one says when the steps of the schedule are over.
        """
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = f"tensor of {loss.numel()}" if isinstance(loss, Tensor) else type(loss).__name__
            raise ConfigError(f"the loss is a {kind}; it must be a tensor of one number")
        if not loss.requires_grad:
            raise ConfigError(
                "the loss has no gradient; compute it from the model's outputs without no_grad or detach"
            )
        if self.schedule.last_epoch == self.steps:
            warnings.warn(
                f"all {self.steps} steps are done: the rate is 0 now, give recipe more steps", stacklevel=2
            )
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.optimizer.step()
        self.schedule.step()
        self.losses.append(loss.item())
        if len(self.losses) % _CHECKED == 0 and (reason := stuck(self.losses, self.classes, self.warm_up)):
            warnings.warn(reason, stacklevel=2)
        return self.losses[-1]


def recipe(
    model: nn.Module,
    rate: float,
    *,
    steps: int | None = None,
    classes: int | None = None,
    weight_decay: float = 5e-4,
    momentum: float = 0.9,
    clip_norm: float = 1.0,
    warm_up: int = 50,
) -> Recipe:
    """Make an optimizer for converted networks: weight decay only on weights, clipped gradients, warm-up.

    Args:
        model: a network, such as `convert(...).model`.
        rate: the learning rate; `find_rate` finds one.
        steps: number of training steps; if given, the rate falls to 0 along half a cosine and stays there.
        classes: number of classes; if given, a warning says when the loss stays at chance, ln(classes).
        weight_decay: L2 on the weights of layers, `l2_parameters`; scalars, biases and embeddings have none.
        momentum: momentum of SGD.
        clip_norm: the largest norm of the gradient of a step.
        warm_up: steps over which the rate rises from 0.
    """
    check_model(model)
    rate, steps, classes = plain(rate), plain(steps), plain(classes)
    require("rate", rate, is_number(rate) and 0 < rate < math.inf, "a positive number")
    decays = is_number(weight_decay) and 0 <= weight_decay < math.inf
    require("weight_decay", weight_decay, decays, "0 or a positive number")
    require("momentum", momentum, is_number(momentum) and 0 <= momentum < 1, "in [0, 1)")
    require("clip_norm", clip_norm, is_number(clip_norm) and clip_norm > 0, "a positive number")
    require("warm_up", warm_up, _is_count(warm_up, 0), "a whole number, 0 or more")
    require("steps", steps, steps is None or _is_count(steps, 1), "a whole number, 1 or more, or None")
    require(
        "classes", classes, classes is None or _is_count(classes, 2), "a whole number, 2 or more, or None"
    )
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        raise ConfigError(f"no parameter of {type(model).__name__} requires a gradient; nothing would train")
    decayed = [p for name, p in l2_parameters(model).items() if name in trained]
    ids = {id(parameter) for parameter in decayed}
    others = [parameter for parameter in trained.values() if id(parameter) not in ids]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD([g for g in groups if g["params"]], lr=rate, momentum=momentum)

    def factor(step: int) -> float:
        rising = min(1.0, (step + 1) / warm_up) if warm_up else 1.0
        falling = 1.0 if steps is None else 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
        return rising * falling

    schedule = LambdaLR(optimizer, factor)
    return Recipe(optimizer, schedule, list(trained.values()), clip_norm, classes, warm_up, steps)


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def stuck(losses: Sequence[float], classes: int | None = None, warm_up: int = 0) -> str | None:
    """Why the training makes no progress, in one line; None if it does or is too short to tell.

    At the small rates of a warm-up a good network may make none.
    """
    if len(losses) < _CHECKED:
        return None
    recent = fmean(losses[-_CHECKED // 2 :])
    advice = "try a rate 4 times smaller or skipinit.find_rate, a longer warm-up or a smaller clip_norm"
    if not math.isfinite(recent):
        return f"the loss is {recent} after {len(losses)} steps: {advice}"
    if len(losses) < warm_up + _CHECKED:
        return None
    if classes is not None and abs(recent - math.log(classes)) < _STUCK_WITHIN * math.log(classes):
        chance = f"ln({classes}) = {math.log(classes):.3g}"
        return f"stuck at chance: after {len(losses)} steps the loss is {recent:.3g}, {chance}; {advice}"
    if recent > losses[0]:
        first = f"{losses[0]:.3g} at the first step"
        return f"no progress: after {len(losses)} steps the loss is {recent:.3g}, {first}; {advice}"
    return None


@dataclass(frozen=True)
class RateSearch:
    """The result of `find_rate`."""

    rate: float
    """The rate with the lowest loss, or half of it if twice that rate diverged."""
    losses: dict[float, float]
    """For each rate, the mean loss over the last tenth of its steps; infinity where it diverged."""
    steps: int

    def plot(self, path: str | Path) -> None:
        """Draw the losses over the rates: .png, .svg or .pdf."""
        need("lab", "a plot")
        from matplotlib.figure import Figure

        from ..probing.plot import BRANCH, SKIP, save

        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        axes = figure.subplots()
        points = sorted((rate, loss) for rate, loss in self.losses.items() if math.isfinite(loss))
        axes.plot(*zip(*points, strict=True), "o-", color=SKIP, markerfacecolor="none")
        axes.axvline(self.rate, color=BRANCH, linewidth=1, label=f"chosen: {self.rate:.3g}")
        axes.set_xscale("log", base=2)
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"loss after {self.steps} steps")
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        save(figure, Path(path))

    def __str__(self) -> str:
        tried = ", ".join(f"{rate:.3g}: {loss:.3g}" for rate, loss in sorted(self.losses.items()))
        return f"rate {self.rate:.3g}; loss after {self.steps} steps at each rate: {tried}"


def find_rate(
    model: nn.Module,
    batches: Iterable[tuple[Any, Any]],
    loss: Loss = nn.functional.cross_entropy,
    *,
    steps: int = 100,
    **options: Any,
) -> RateSearch:
    """Find the learning rate, a power of 2, at which `recipe` reduces the loss most in a few steps.

    Copies of the model train on the same batches at rates a factor 2 apart, up and down from 2^-4, until the
    loss rises on both sides. Each training is short but has a whole schedule: the rate rises and falls to 0.
    The best rate of such a schedule hardly depends on its length, while the best constant rate falls with it.
    The model and torch's random generators do not change.

    Args:
        model: a network, such as `convert(...).model`.
        batches: pairs of inputs and targets, such as a data loader. The first `steps` are kept in memory; if
            there are fewer, as in `itertools.islice(loader, 20)`, they are used again. Inputs that are a
            tuple are arguments, those that are a dictionary keyword arguments.
        loss: a function of the model's output and the targets.
        steps: number of training steps at each rate.
        options: options of `recipe`, except `steps`; the warm-up is a fifth of the steps by default.
    """
    check_model(model)
    steps = plain(steps)
    require("steps", steps, _is_count(steps, 1), "a whole number, 1 or more")
    require("loss", loss, callable(loss), "a function of the model's output and the targets")
    with preserve_state(model):  # A data loader that shuffles draws from torch's generator.
        kept = _pairs(batches, steps)
    options = {"warm_up": max(1, steps // 5), **options}
    tried: dict[int, float] = {}

    def score(power: int) -> float:
        if not _LOWEST <= power <= _HIGHEST:
            return math.inf
        if power not in tried:
            with preserve_state(model):
                losses = _train_copy(model, kept, loss, 2.0**power, steps, options)
            tried[power] = fmean(losses[-max(1, steps // 10) :])
        return tried[power]

    best = -4
    while not math.isfinite(score(best)) and best > _LOWEST:
        best -= 1
    while score(near := min(best - 1, best + 1, key=score)) < score(best):
        best = near
    if not math.isfinite(tried[best]):
        raise SkipinitError(f"{type(model).__name__} diverges at every rate down to 2^{_LOWEST}")
    if math.isinf(tried.get(best + 1, 0.0)) and best > _LOWEST:
        best -= 1  # A longer training stays near its largest rate for longer, and may diverge there.
    return RateSearch(2.0**best, {2.0**power: value for power, value in tried.items()}, steps)


def _pairs(batches: Any, count: int) -> list[tuple[Any, Any]]:
    """The first batches; raises if they are not pairs."""
    pairs = "pairs of inputs and targets, [(inputs, targets), ...] or a data loader"
    if isinstance(batches, Tensor) or not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise ConfigError(f"batches is a {type(batches).__name__}; give {pairs}")
    kept = list(itertools.islice(batches, count))
    if not kept:
        raise ConfigError(f"batches is empty; give {pairs}")
    for batch in kept:
        if not (isinstance(batch, (tuple, list)) and len(batch) == 2):
            raise ConfigError(f"a batch is a {type(batch).__name__} and no pair; give {pairs}")
    return [(inputs, targets) for inputs, targets in kept]


def _loss_of(loss: Loss, output: Any, targets: Any) -> Tensor:
    """The loss; if the default one does not fit the output, the error says so."""
    if loss is not nn.functional.cross_entropy:
        return loss(output, targets)
    if not isinstance(output, Tensor):
        raise ConfigError(
            f"the model returns a {type(output).__name__}; give loss=, a function of it and targets"
        )
    try:
        return loss(output, targets)
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ConfigError(f"cross-entropy does not fit ({one_line(error)}); give loss=") from error


def _train_copy(
    model: nn.Module,
    batches: Sequence[tuple[Any, Any]],
    loss: Loss,
    rate: float,
    steps: int,
    options: dict[str, Any],
) -> list[float]:
    """The loss of each step; if the training diverges, the last one is infinity."""
    trained = copy_model(model).train()
    trainer = recipe(trained, rate, steps=steps, **options)
    with torch.enable_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for inputs, targets in itertools.islice(itertools.cycle(batches), steps):
            arguments, keywords = arguments_of(trained, inputs)
            value = trainer.step(_loss_of(loss, trained(*arguments, **keywords), targets))
            if len(trainer.losses) == 1 and not math.isfinite(value):
                raise SkipinitError(
                    f"{type(model).__name__}: the loss is {value} before the first update, so no rate helps; "
                    "look for NaN, infinity or very large values in the inputs, the targets and the weights"
                )
            if not math.isfinite(value) or value > 10 * max(1.0, trainer.losses[0]):
                return [*trainer.losses, math.inf]
    return trainer.losses
