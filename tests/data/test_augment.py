"""Standardization and crop-and-flip against float64 NumPy, image by image."""

import itertools

import numpy as np
import pytest
import torch

from skipinit.data import crop_flip, epoch_plan, standardize
from skipinit.errors import ConfigError


def standardize_reference(image):
    image = image.astype(np.float64)
    return (image - image.mean()) / max(image.std(), 1 / np.sqrt(image.size))


def crop_flip_reference(image, top, left, flip, padding, mode):
    _, height, width = image.shape
    edges = ((0, 0), (padding, padding), (padding, padding))
    padded = np.pad(image, edges, mode="constant" if mode == "zero" else mode)
    cropped = padded[:, top : top + height, left : left + width]
    return cropped[:, :, ::-1] if flip else cropped


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (3, 224, 224)])
def test_standardize_equals_the_formula(shape):
    generator = np.random.default_rng(0)
    noise = generator.integers(0, 256, (6, *shape), dtype=np.uint8)
    noise[1] = 255
    noise[2] = 0
    noise[3] = 17
    noise[3, 0, 0, 0] = 18  # σ² = 1/N - 1/N²: just under the floor
    noise[4] = noise[4] // 64 + 190
    expected = np.stack([standardize_reference(image) for image in noise])
    found = standardize(torch.from_numpy(noise))
    assert found.dtype == torch.float32
    # x - mean(x) is off by a few roundings of a float32 as large as x, whatever the divisor.
    divisor = np.array([max(image.std(), image.size**-0.5) for image in noise.astype(np.float64)])
    bound = 4 * np.finfo(np.float32).eps * noise.max((1, 2, 3)) / divisor
    assert (abs(found.numpy() - expected).max((1, 2, 3)) <= bound).all()
    assert not found[1:3].any(), "a constant image becomes zero, not NaN"


def test_floor_is_one_over_root_n():
    image = torch.full((1, 3, 32, 32), 100, dtype=torch.uint8)
    image[0, 0, 0, 0] = 101
    peak = standardize(image).double().max().item()
    n = 3 * 32 * 32
    assert peak == pytest.approx((1 - 1 / n) * np.sqrt(n), rel=1e-5)
    unfloored = (1 - 1 / n) / np.sqrt(1 / n - 1 / n**2)
    assert abs(peak - unfloored) > 5 * abs(peak - (1 - 1 / n) * np.sqrt(n))


def test_an_image_is_standardized_alone_whatever_axes_come_before_its_own():
    images = torch.randint(0, 256, (2, 2, 3, 5, 4), generator=torch.Generator().manual_seed(0))
    found = standardize(images)
    for place in itertools.product(range(2), range(2)):
        assert torch.equal(found[place], standardize(images[place]))
        assert found[place].numpy() == pytest.approx(standardize_reference(images[place].numpy()), abs=1e-5)


@pytest.mark.parametrize("mode", ["zero", "reflect", "symmetric"])
@pytest.mark.parametrize(
    ("shape", "padding"), [((3, 32, 32), 4), ((1, 8, 8), 1), ((2, 5, 9), 3), ((3, 6, 6), 0)]
)
def test_crop_flip_equals_the_reference_at_every_offset(shape, padding, mode):
    offsets = range(2 * padding + 1)
    cases = list(itertools.product(offsets, offsets, [False, True]))
    images = np.random.default_rng(1).standard_normal((len(cases), *shape)).astype(np.float32)
    top, left, flip = (torch.tensor(column) for column in zip(*cases, strict=True))
    found = crop_flip(torch.from_numpy(images), top, left, flip, padding, mode).numpy()
    for image, case, result in zip(images, cases, found, strict=True):
        assert np.array_equal(result, crop_flip_reference(image, *case, padding, mode)), case


def test_crop_flip_keeps_the_type_and_takes_channels_last():
    images = torch.randint(1, 256, (4, 3, 8, 8), dtype=torch.uint8)
    plan = epoch_plan(0, 0, 4, padding=2, flip=True)
    found = crop_flip(images, *plan[1:], padding=2)
    assert found.dtype == torch.uint8
    assert torch.equal(crop_flip(images.to(memory_format=torch.channels_last), *plan[1:], padding=2), found)


def test_wrong_padding_is_refused():
    images, offset, flip = (
        torch.zeros(1, 1, 4, 4),
        torch.zeros(1, dtype=torch.long),
        torch.zeros(1, dtype=torch.bool),
    )
    with pytest.raises(ConfigError, match="padding 4 cannot mirror 4×4"):
        crop_flip(images, offset, offset, flip, 4, "reflect")
    with pytest.raises(ConfigError, match=r"'wrap'.*zero, reflect or symmetric"):
        crop_flip(images, offset, offset, flip, 4, "wrap")
    for shape in ((4, 9), (9, 4)):  # the shorter side decides
        with pytest.raises(ConfigError, match="padding 4 cannot mirror"):
            crop_flip(torch.zeros(1, 1, *shape), offset, offset, flip, 4, "symmetric")


def prepare(images, top, left, flip):
    return crop_flip(standardize(images), top, left, flip)


def batch(device="cpu", seed=0):
    images = torch.randint(
        0, 256, (16, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)
    )
    return [images.to(device), *(column.to(device) for column in epoch_plan(seed, 0, 16, 4, True)[1:])]


def test_no_graph_break_under_compile():
    compiled = torch.compile(prepare, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(*batch()), prepare(*batch()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_captured_in_a_cuda_graph():
    static = batch("cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        prepare(*static)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = prepare(*static)
    for seed in (1, 2):
        for place, fresh in zip(static, batch("cuda", seed), strict=True):
            place.copy_(fresh)
        graph.replay()
        torch.testing.assert_close(result.cpu(), prepare(*batch(seed=seed)), atol=3e-6, rtol=3e-6)
