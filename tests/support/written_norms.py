"""Norms as people write them, without a norm of torch and without `rsqrt`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 6


def by_deviation(x: Tensor) -> Tensor:
    """As in "The Annotated Transformer"."""
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True, unbiased=False) + 1e-6)


def by_root_of_variance(x: Tensor) -> Tensor:
    """As in ConvNeXt and Segment Anything."""
    mean = x.mean(-1, keepdim=True)
    variance = (x - mean).pow(2).mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt(variance + 1e-6)


def by_variance_and_mean(x: Tensor) -> Tensor:
    variance, mean = torch.var_mean(x, -1, keepdim=True, unbiased=False)
    return (x - mean).div_((variance + 1e-6) ** 0.5)


def by_normalize(x: Tensor) -> Tensor:
    return F.normalize(x, dim=-1) * WIDTH**0.5


def by_vector_norm(x: Tensor) -> Tensor:
    return x / (x.norm(2, dim=-1, keepdim=True) * WIDTH**-0.5 + 1e-8)


def by_power(x: Tensor) -> Tensor:
    return x * (x.pow(2).mean(-1, keepdim=True) + 1e-6).pow(-0.5)


def by_inverse(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) * (1 / (x.var(-1, keepdim=True, unbiased=False) + 1e-6).sqrt())


def by_scale_over_deviation(x: Tensor) -> Tensor:
    """As in batch norms, whose weight is divided first."""
    scale = torch.ones(WIDTH) / (x.var(0, unbiased=False) + 1e-5).sqrt()
    return scale * (x - x.mean(0))


def by_product(x: Tensor) -> Tensor:
    return x / ((x * x).mean(-1, keepdim=True) + 1e-6).sqrt()


def by_each_value(x: Tensor) -> Tensor:
    """No norm: each value for itself, as a diffusion model is scaled by its noise."""
    return x / (x**2 + 1).sqrt()


def by_power_of_each_value(x: Tensor) -> Tensor:
    """No norm, like that before."""
    return x * (x**2 + 1) ** -0.5


TWINS: dict[Callable[[Tensor], Tensor], Callable[[], nn.Module]] = {
    by_deviation: lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    by_root_of_variance: lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    by_variance_and_mean: lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    by_normalize: lambda: nn.RMSNorm(WIDTH, elementwise_affine=False),
    by_vector_norm: lambda: nn.RMSNorm(WIDTH, elementwise_affine=False),
    by_power: lambda: nn.RMSNorm(WIDTH, elementwise_affine=False),
    by_inverse: lambda: nn.LayerNorm(WIDTH, elementwise_affine=False),
    by_product: lambda: nn.RMSNorm(WIDTH, elementwise_affine=False),
}
"""Each with the layer of torch that computes the same."""


class WrittenNorm(nn.Module):
    """f(x), for one of the functions above"""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class AffineNorm(WrittenNorm):
    """As in the first BERTs: scale * f(x) + shift"""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__(function)
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * super().forward(x) + self.shift


class ResponseNorm(nn.Module):
    """As in ConvNeXt V2: divides by the mean of the norms of other channels, which is no size of x."""

    def forward(self, x: Tensor) -> Tensor:
        size = x.norm(dim=0, keepdim=True)
        return x * (size / (size.mean(-1, keepdim=True) + 1e-6)) + x


class NormedLinear(nn.Linear):
    """A cosine classifier's layer: it normalizes, and it has weights."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(F.normalize(x, dim=-1), F.normalize(self.weight, dim=-1))


class CosineAttention(nn.Module):
    """As in Swin V2: queries and keys are normalized for the product, values are not."""

    def __init__(self) -> None:
        super().__init__()
        self.maps, self.last = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.maps(x).chunk(3, -1)
        logits = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT
        return self.last((10 * logits).softmax(-1) @ value)


class Normalized(nn.Module):
    """x + f(norm(x))"""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.first, self.last = norm, nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(F.relu(self.first(self.norm(x))))


class PostNormalized(Normalized):
    """norm(x + f(x))"""

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.last(F.relu(self.first(x))))


def network(norm: Callable[[], nn.Module], block: type[Normalized] = Normalized) -> nn.Sequential:
    """Eight blocks, with the same weights whatever the norm."""
    torch.manual_seed(0)
    return nn.Sequential(*(block(norm()) for _ in range(8)), nn.Linear(WIDTH, 3))
