"""`skipinit probe`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from ..config import ModelConfig
from ..data.catalog import DATA_SETS
from ..errors import ConfigError, need, unknown_name
from ..nets.architectures import THEORY_NETWORKS, find_architecture
from ..nets.own import is_own, load_model
from ..notation import check_seed, read_shape
from .flags import Count, Csv, Flag, Json, Model, NetworkFlags, given, refuse_both

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..paper.theory_figures import MeasuredFigure
    from ..probing.balance import ProbeReport

_VALUES_PER_BATCH = 64 * 3 * 32 * 32


@dataclass(frozen=True)
class TheoryFlags:
    """Size of a theory network."""

    blocks: Count = None
    """Number of residual blocks, for the theory networks (fc_linear and others)."""
    width: Count = None
    """Width, for the theory networks."""


@dataclass(frozen=True)
class InputFlags:
    """The input of the model."""

    data: Literal["gaussian", "digits", "cifar10", "cifar100"] = "gaussian"
    """Data set of the batch."""
    input: Annotated[str | None, given("SHAPE")] = None
    """Shape of a Gaussian batch, such as 8x3x224x224; required for your own model."""
    tokens: Count = None
    """Number of token ids, for your own language model: the batch has random ids below it."""
    batch_size: Count = None
    """Examples in the batch; chosen by the size of the images if not given."""

    def __post_init__(self) -> None:
        if self.input is not None and (self.data != "gaussian" or self.batch_size is not None):
            raise ConfigError("--input is the whole shape of a Gaussian batch; omit --data and --batch-size")
        if self.tokens is not None and (self.input is None or self.tokens < 1):
            raise ConfigError("--tokens is the number of token ids, 1 or more; it goes with --input SHAPE")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"--batch-size {self.batch_size} is not allowed; it must be 1 or more")

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The given shape."""
        return None if self.input is None else read_shape(self.input)


def probe(
    model: Model,
    network: Annotated[NetworkFlags, tyro.conf.arg(name="")] = NetworkFlags(),
    theory: Annotated[TheoryFlags, tyro.conf.arg(name="")] = TheoryFlags(),
    inputs: Annotated[InputFlags, tyro.conf.arg(name="")] = InputFlags(),
    gradients: Flag = False,
    seed: int = 0,
    device: str = "auto",
    networks: Count = None,
    check: Flag = False,
    plot: Annotated[Path | None, given("PATH")] = None,
    all: Flag = False,
    json_: Json = False,
    csv_: Csv = False,
) -> int:
    """Measure skip and branch of each residual block; tell if the network can train.

    MODEL is one of these:
    - A name of `skipinit models`.
    - figure2a, figure2b, figure2c or figure5: measures this figure of the paper and
      writes it as PNG and SVG.
    - package.module:factory for your own model. This imports the module and calls
      the factory without arguments: it runs that code, so name only code that you
      trust.

    Example: skipinit probe mypackage:make_model --input 8x3x224x224

    The exit code is 1 if the model has no residual add.

    Args:
        model: What to probe.
        network: The network's scheme and options.
        theory: Size of a theory network.
        inputs: The input of the model.
        gradients: Also measure gradients of the cross-entropy (random labels for Gaussian data).
        seed: Seed of the weights and of the batch.
        device: auto, cpu, cuda or cuda:N; auto is the GPU if there is one.
        networks: Networks that a figure averages over; 16 in figure5, 4 in figure2c, otherwise 1.
        check: Exit with code 1 if NaN or infinity appears, or if the signal explodes or vanishes with depth.
        plot: Write a plot to this .png, .svg or .pdf file; a figure is written as .png and .svg.
        all: Show all blocks and columns, not only the summary of a long network.
        csv_: Print CSV.
    """
    check_seed("--seed", seed)
    figure = model.startswith("figure") and not is_own(model)
    refuse_both(json_, csv_)
    if networks is not None and not figure:
        raise ConfigError("--networks belongs to the figures; other models are probed once")
    if check and figure:
        raise ConfigError("--check is for models; the figures have no verdict")
    if figure:
        network.refuse(model, "which has the paper's networks")
        if theory != TheoryFlags() or inputs != InputFlags() or gradients:
            raise ConfigError(
                f"{model} has the paper's networks and inputs; use --networks, --seed, --device or --plot"
            )
    if networks is not None and networks < 1:
        raise ConfigError(f"--networks {networks} is not allowed; it must be 1 or more")
    if inputs.shape is None and is_own(model) and inputs.data == "gaussian":
        raise ConfigError(f"{model}: give the shape of its input, as in --input 8x3x224x224")
    if figure or plot is not None or inputs.data != "gaussian":
        what = model if figure else f"--data {inputs.data}" if plot is None else "--plot"
        need("lab", f"skipinit probe {what}")
    import torch

    from ..probing.measure import probe as measure
    from ..training.world import find_device

    device = str(find_device(device))
    if figure:
        _show(_figure(model, seed, device, networks, plot), json_, csv_, all)
        return 0
    if plot is not None:
        from ..probing.plot import check_suffix

        check_suffix(plot)
    torch.manual_seed(seed)
    net = _build(model, network, theory, inputs)
    batch, labels = _batch(net, inputs)
    report = measure(net.to(device), batch.to(device), labels.to(device) if gradients else None)
    without_scheme = model in THEORY_NETWORKS or is_own(model)
    scheme = network.of(ModelConfig).get("scheme", "batchnorm")
    report = replace(report, model=model if without_scheme else f"{model}, {scheme}")
    if plot is not None and report.rows:
        report.plot(plot)
    _show(report, json_, csv_, all)
    if check:
        report.check()
    return 0 if report.rows else 1


def _show(report: ProbeReport | MeasuredFigure, json_: bool, csv_: bool, every: bool) -> None:
    from ..probing.balance import ProbeReport

    text = report.to_text(every) if isinstance(report, ProbeReport) else str(report)
    print(report.to_json() if json_ else report.to_csv().rstrip() if csv_ else text)


def _figure(name: str, seed: int, device: str, networks: int | None, plot: Path | None) -> MeasuredFigure:
    from ..paper.theory_figures import FIGURES, measure_figure
    from ..training.control import steps_bar

    if name not in FIGURES:
        raise unknown_name("figure", name, FIGURES)
    count = networks or FIGURES[name].networks
    with steps_bar(count, shown=count > 1) as bar:
        bar.update(0, "networks")
        figure = measure_figure(name, seed, device, count, after_each=lambda: bar.advance(1))
    for path in figure.save(plot or Path(name)):
        print(f"wrote {path}", file=sys.stderr)
    return figure


def _build(name: str, network: NetworkFlags, theory: TheoryFlags, inputs: InputFlags) -> nn.Module:
    if name not in THEORY_NETWORKS and theory != TheoryFlags():
        raise ConfigError(f"--blocks and --width belong to the theory networks, {', '.join(THEORY_NETWORKS)}")
    if is_own(name):
        network.refuse(name, "which takes no options; set them in your factory")
        return load_model(name)
    from ..nets.create import build, create_model

    if name in THEORY_NETWORKS:
        network.refuse(name, "a theory network; it takes --blocks and --width")
        sizes = {"blocks": theory.blocks, "width": theory.width}
        return create_model(name, **{option: size for option, size in sizes.items() if size is not None})
    entry, shape = DATA_SETS[inputs.data], inputs.shape
    channels = shape[1] if shape is not None and len(shape) > 1 else entry.shape[0]
    shaped = {"in_channels": channels} | (
        {} if inputs.data == "gaussian" else {"num_classes": entry.num_classes}
    )
    return build(ModelConfig(name, **{**shaped, **network.of(ModelConfig)}))


def _batch(net: nn.Module, inputs: InputFlags) -> tuple[Tensor, Tensor]:
    """Inputs and labels, drawn from torch's generator."""
    import torch

    if inputs.data == "gaussian":
        shape = inputs.shape or _default_shape(net, inputs.batch_size)
        batch = torch.randn(shape) if inputs.tokens is None else torch.randint(inputs.tokens, shape)
        return batch, torch.randint(_random_labels(net), shape[:1])
    from ..data.images import load, standardize

    images = load(inputs.data)
    chosen = torch.randperm(len(images.train_images))[: inputs.batch_size or 64]
    return standardize(images.train_images[chosen]), images.train_labels[chosen]


def _random_labels(net: nn.Module) -> int:
    """How many different labels are drawn: ten or, if the network has fewer outputs, that many."""
    from ..nets.create import ResidualNet

    if not isinstance(net, ResidualNet):
        return 2  # the outputs of the user's own model are not known before it runs
    outputs = net.config.num_classes if isinstance(net.config, ModelConfig) else net.config.width
    return min(10, outputs or 10)


def _default_shape(net: nn.Module, batch_size: int | None) -> tuple[int, ...]:
    """The paper's batch for theory networks; otherwise 64 images of CIFAR, or as many values."""
    from ..nets.create import ResidualNet

    assert isinstance(net, ResidualNet), "the user's own model comes with a shape"
    name, channels = net.config.name, net.in_channels
    if name in THEORY_NETWORKS:
        convolutional = THEORY_NETWORKS[name].convolutional
        example = (channels, 32, 32) if convolutional else (channels,)
        return (batch_size or (100 if convolutional else 1000), *example)
    size = find_architecture(name).image_size
    return (batch_size or max(8, _VALUES_PER_BATCH // (3 * size * size)), channels, size, size)
