"""Small models written the many ways people write residual networks, and batches for them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def images(count: int, seed: int = 0) -> Tensor:
    """So many images of 32 x 32 pixels."""
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def vectors(count: int) -> Tensor:
    """So many vectors of six numbers, as `Function` and `LoopNet` take."""
    return torch.randn(count, 6, generator=torch.Generator().manual_seed(1))


class Bottleneck(nn.Module):
    """Post-activation, in-place add and ReLU, convolution on the skip where shapes change."""

    def __init__(self, channels: int, middle: int, stride: int, project: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, 4 * middle, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * middle)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if project:
            conv = nn.Conv2d(channels, 4 * middle, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(4 * middle))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class PostActivationResNet(nn.Module):
    """ResNet-50's shape: 3, 4, 6 and 3 bottlenecks."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        channels = width
        for group, count in enumerate((3, 4, 6, 3)):
            middle = width * 2**group
            blocks = []
            for index in range(count):
                stride = 2 if group and index == 0 else 1
                blocks.append(Bottleneck(channels, middle, stride, project=index == 0))
                channels = 4 * middle
            setattr(self, f"layer{group + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class PreActivationBlock(nn.Module):
    """Functional ReLUs; the projection starts from the activated tensor."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        if stride != 1 or channels != out:
            self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv1(out)
        out = self.conv2(F.relu(self.bn2(out)))
        out += shortcut
        return out


class PreActivationResNet(nn.Module):
    """Eight blocks, two of them with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 1, 1)
        shapes = [(8, 8, 1)] * 3 + [(8, 16, 2)] + [(16, 16, 1)] * 2 + [(16, 32, 2), (32, 32, 1)]
        self.blocks = nn.ModuleList(PreActivationBlock(*shape) for shape in shapes)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 3) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, length, width))


class EncoderBlock(nn.Module):
    def __init__(self, width: int, parallel: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = Attention(width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.parallel = parallel

    def forward(self, x: Tensor) -> Tensor:
        if self.parallel:
            h = self.norm1(x)
            return x + self.attn(h) + self.mlp(h)
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches, class token, positional embedding, `depth` pre-norm blocks."""

    def __init__(self, depth: int = 12, width: int = 24, parallel: bool = False) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.pos = nn.Parameter(torch.randn(1, 17, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, parallel) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1)
        x = self.blocks(x + self.pos)
        return self.head(self.norm(x)[:, 0])


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution in NCHW, the rest in NHWC, a learned scale per channel at the end."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(1e-6 * torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(F.gelu(self.pwconv1(self.norm(x))))
        return shortcut + (self.gamma * x).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    """3, 3, 9 and 3 blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 4, 4)
        self.stages = nn.ModuleList(
            nn.Sequential(*(ConvNeXtBlock(8) for _ in range(count))) for count in (3, 3, 9, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return x.mean((2, 3))


class LoopNet(nn.Module):
    """A Python loop over one shared layer, and an `if` on the data that picks the side of the skip."""

    def __init__(self, loops: int = 4) -> None:
        super().__init__()
        self.loops = loops
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(self.loops):
            update = torch.tanh(self.layer(x))
            x = x + update if float(x.sum()) > 0 else update + x
        return x


class Function(nn.Module):
    """A few layers `a`, `b`, `c`, `d` of one width, and the forward that a test gives."""

    def __init__(self, forward, make=lambda: nn.Linear(6, 6)) -> None:  # type: ignore[no-untyped-def]
        super().__init__()
        self.a, self.b, self.c, self.d = make(), make(), make(), make()
        self.norm = nn.LayerNorm(6)
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.table = nn.Parameter(torch.randn(4, 6))
        self.function = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


class Language(nn.Module):
    """Token ids, two residual adds, logits."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.block, self.head = nn.Embedding(30, 24), EncoderBlock(24), nn.Linear(24, 30)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.block(self.table(ids)))
