"""Whatever a public function of the library returns can be imported from `skipinit`, and is documented with
examples that hold.
"""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import typing

import pytest
import torch

import skipinit

LIBRARY = (
    "create_model",
    "build",
    "from_pretrained",
    "describe",
    "probe",
    "find_residual_adds",
    "watch",
    "convert",
)
PUBLIC = {name: getattr(skipinit, name) for name in skipinit.__all__}


def types_in(hint):
    """The classes of this package in an annotation."""
    if inspect.isclass(hint) and hint.__module__.startswith("skipinit."):
        yield hint
    for argument in typing.get_args(hint):
        yield from types_in(argument)


def hints(thing):
    return typing.get_type_hints(thing, localns=PUBLIC | {"nn": torch.nn})


@pytest.mark.parametrize("name", LIBRARY)
def test_returned_types_and_those_of_their_fields_are_public(name):
    waiting = list(types_in(hints(PUBLIC[name])["return"]))
    assert waiting
    for found in waiting:
        assert PUBLIC.get(found.__name__) is found
        if dataclasses.is_dataclass(found):
            waiting.extend(t for hint in hints(found).values() for t in types_in(hint) if t not in waiting)


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - {"__version__"}))
def test_public_names_are_documented(name):
    documentation = PUBLIC[name].__doc__
    assert documentation
    assert not documentation.startswith(f"{name}(")  # what a dataclass without a docstring has


@pytest.mark.parametrize(
    "name",
    sorted(
        name
        for name, home in skipinit._HOME.items()
        if ">>>" in (PUBLIC[name].__doc__ or "") and home.partition(".")[0] not in skipinit._LABORATORY
    ),
)
def test_examples_of_docstrings_hold(name, tmp_path, monkeypatch):
    """Those of the laboratory train for long."""
    monkeypatch.chdir(tmp_path)
    names = PUBLIC | {"skipinit": skipinit, "torch": torch}
    example = doctest.DocTestParser().get_doctest(PUBLIC[name].__doc__, names, name, None, 0)
    try:
        doctest.DebugRunner().run(example)
    except doctest.UnexpectedException as raised:
        raise raised.exc_info[1] from None


@pytest.mark.parametrize(
    ("merge", "equation"),
    [
        (skipinit.Add(), lambda skip, branch: skip + branch),
        (skipinit.SkipInit(), lambda skip, branch: skip),
        (skipinit.SkipInit(alpha=0.3), lambda skip, branch: skip + 0.3 * branch),
        (skipinit.DivideSqrt2(), lambda skip, branch: (skip + branch) / 2**0.5),
        (skipinit.NormalizeOutput(skipinit.GhostBatchNorm2d(5)), lambda s, b: normalized(s + b)),
        (skipinit.NormalizeSkip(skipinit.GhostBatchNorm2d(5)), lambda s, b: normalized(s) + b),
    ],
    ids=lambda value: type(value).__name__,
)
def test_merges_are_modules_for_any_network(merge, equation):
    """In double precision against the equation that their docstrings open with."""
    skip, branch = torch.randn(2, 6, 5, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    torch.testing.assert_close(merge.double()(skip, branch), equation(skip, branch))


def normalized(x):
    mean, variance = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), keepdim=True, correction=0)
    return (x - mean) / (variance + 1e-5).sqrt()


def test_build_takes_a_config():
    config = skipinit.ModelConfig("wrn10_1", scheme="skipinit", num_classes=3)
    model = skipinit.build(config, seed=0)
    assert isinstance(model, skipinit.ResidualNet)
    assert isinstance(model.blocks[0].merge, skipinit.SkipInit)
    same = skipinit.create_model("wrn10_1", scheme="skipinit", num_classes=3, seed=0)
    assert all(map(torch.equal, model.parameters(), same.parameters()))
