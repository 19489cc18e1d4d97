"""What all the networks share: a stem, a chain of residual blocks, a head."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from ..config import ModelConfig, TheoryConfig
from ..errors import ConfigError
from .blocks import chain
from .layers import Named
from .pretrained import save


class ResidualNet(nn.Module):
    """head(block_d(... block_1(stem(x))))"""

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
        self._described = frozenset(self.state_dict())

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
        """Write weights and config into the folder, for `skipinit.from_pretrained`."""
        if changed := sorted(self._described ^ self.state_dict().keys()):
            raise ConfigError(
                f"this network was changed, so its config no longer describes it ({changed[0]} among "
                f"{len(changed)} tensors that came or went); save its state_dict with torch.save"
            )
        save(self, self.config, Path(folder))
