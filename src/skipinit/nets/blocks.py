"""Residual blocks, which compute skip and branch, and the network as a chain of blocks."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

from torch import Tensor, nn

from ..config import ModelConfig, TheoryConfig
from ..errors import ConfigError
from .layers import Named
from .pretrained import save


def chain(layers: Named) -> nn.Sequential:
    """A sequence of named layers."""
    return nn.Sequential(OrderedDict(layers))


class Subsample(nn.Module):
    """x at every second row and column: a 1x1 max pool of stride 2"""

    def forward(self, x: Tensor) -> Tensor:
        """Returns a view."""
        return x[..., ::2, ::2]


class PreActivationBlock(nn.Module):
    """merge(x, f(relu(x))): the skip is the identity, or subsampling where the stride is 2"""

    def __init__(self, preactivation: Named, branch: Named, merge: nn.Module, stride: int = 1) -> None:
        super().__init__()
        self.skip = nn.Identity() if stride == 1 else Subsample()
        self.preactivation = chain(preactivation)
        self.branch = chain(branch)
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        """The merge takes x without the activation."""
        out: Tensor = self.merge(self.skip(x), self.branch(self.preactivation(x)))
        return out


class TransitionBlock(nn.Module):
    """merge(W h, f(h)), h = relu(x): where the channels change, the skip is a 1x1 convolution of h"""

    def __init__(self, preactivation: Named, skip: Named, branch: Named, merge: nn.Module) -> None:
        super().__init__()
        self.preactivation = chain(preactivation)
        self.skip = chain(skip)
        self.branch = chain(branch)
        self.merge = merge

    def forward(self, x: Tensor) -> Tensor:
        """Skip and branch share the activation."""
        h = self.preactivation(x)
        out: Tensor = self.merge(self.skip(h), self.branch(h))
        return out


class RawTransitionBlock(TransitionBlock):
    """merge(W x, f(relu(x))): the 1x1 convolution of the skip sees x before the activation"""

    def forward(self, x: Tensor) -> Tensor:
        """Only the branch has the activation."""
        out: Tensor = self.merge(self.skip(x), self.branch(self.preactivation(x)))
        return out


class PostActivationBlock(nn.Module):
    """relu(merge(S x, f(x)) [+ b]): ResNet-V1, in which no skip is the identity (appendix F)"""

    def __init__(self, skip: Named, branch: Named, merge: nn.Module, activation: Named) -> None:
        super().__init__()
        self.skip = chain(skip) if skip else nn.Identity()
        self.branch = chain(branch)
        self.merge = merge
        self.activation = chain(activation)

    def forward(self, x: Tensor) -> Tensor:
        """The ReLU comes after the merge."""
        out: Tensor = self.activation(self.merge(self.skip(x), self.branch(x)))
        return out


class ResidualNet(nn.Module):
    """head(block_d(... block_1(stem(x))))

    A network of this package; `create_model` builds it. The blocks are in `blocks`, its options in `config`.
    """

    def __init__(
        self,
        config: ModelConfig | TheoryConfig,
        in_channels: int,
        stem: Named,
        blocks: list[nn.Module],
        head: Named,
    ) -> None:
        super().__init__()
        self.config = config
        self.in_channels = in_channels
        self.in_axes = 4 if any(isinstance(layer, nn.Conv2d) for layer in stem.values()) else 2
        self.stem = chain(stem)
        self.blocks = nn.Sequential(*blocks)
        self.head = chain(head)
        self._built = self._layers_and_shapes()

    @property
    def num_blocks(self) -> int:
        """d, the number of residual blocks."""
        return len(self.blocks)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of an image network; the last block's output of a theory network."""
        if x.dim() != self.in_axes or x.shape[1] != self.in_channels:
            raise ConfigError(
                f"{self.config.name}: an input of shape {tuple(x.shape)} is not allowed; "
                f"it takes {self.in_axes} axes with {self.in_channels} channels in the second"
            )
        out: Tensor = self.head(self.blocks(self.stem(x)))
        return out

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights and config into the folder, for `skipinit.from_pretrained`.

        Raises ConfigError if layers were replaced, added or removed: the config would build another network.
        """
        built, now = self._built, self._layers_and_shapes()
        changed = [name for name in sorted(built.keys() | now.keys()) if built.get(name) != now.get(name)]
        if changed:
            name = changed[-1]  # the innermost, which says most
            raise ConfigError(
                f"this network was changed, so its config no longer describes it ({name} is "
                f"{now.get(name, 'missing')}, was {built.get(name, 'not there')}); save its state_dict with "
                "torch.save"
            )
        save(self, self.config, Path(folder))

    def _layers_and_shapes(self) -> dict[str, str]:
        """What the config decides: every layer with its settings, every tensor with its shape."""
        layers = {name: f"{type(m).__name__}({m.extra_repr()})" for name, m in self.named_modules()}
        return layers | {name: str(tuple(tensor.shape)) for name, tensor in self.state_dict().items()}
