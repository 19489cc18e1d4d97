"""What a report says of a network; and a report as a test: which rules it keeps, which blocks break them."""

from __future__ import annotations

import math
import pickle
import re
from itertools import accumulate

import numpy as np
import pytest
import torch
from torch import nn

from skipinit.errors import ConfigError, SkipinitError
from skipinit.nets.create import create_model
from skipinit.probing.growth import fit_growth
from skipinit.probing.laws import stages
from skipinit.probing.measure import find_residual_adds, probe
from skipinit.probing.verdict import CheckError
from support.probe_models import Function, images, vectors

BATCH = torch.Size([100, 50])


def test_growth_laws_are_told_apart_under_noise():
    noise = np.random.default_rng(0).normal(1, 0.03, 40)
    depths = np.arange(1, 41)
    exponential = fit_growth((1.5**depths * noise).tolist())
    assert (exponential.law, exponential.rate) == ("exponential", pytest.approx(1.5, rel=0.01))
    wandering = np.cumsum(np.random.default_rng(1).normal(0.4, 0.3, 160))  # what deep networks really do
    exponential = fit_growth(np.exp(wandering).tolist())
    assert (exponential.law, exponential.rate) == ("exponential", pytest.approx(math.exp(0.4), rel=0.1))
    linear = fit_growth(((3 + 0.9 * depths) * noise).tolist())
    assert (linear.law, linear.rate) == ("linear", pytest.approx(0.9, rel=0.05))
    constant = fit_growth((4 * noise).tolist())
    assert (constant.law, constant.rate) == ("constant", pytest.approx(4, rel=0.02))
    drifting = fit_growth([2 * 1.02**depth for depth in range(7)])  # the level is that of the middle
    assert (drifting.law, drifting.rate) == ("constant", pytest.approx(2 * 1.02**3))
    assert fit_growth([1.0, 2.0]).law == "unknown"
    assert fit_growth([0.0, 0.0, 0.0]).law == "unknown"


@pytest.mark.parametrize(
    ("scheme", "biased", "law"),
    [
        ("batchnorm", True, "linear"),
        ("skipinit", True, "constant"),
        ("none", False, "exponential"),
    ],
)
def test_verdict_on_the_papers_schemes(scheme, biased, law):
    """Section 2.1 for each; 8 blocks a group, so that the fit has something to fit."""
    model = create_model("wrn52_1", scheme=scheme, seed=0)
    verdict = probe(model, images(4)).verdict
    assert (verdict.biased_to_identity, verdict.growth.law, verdict.growth.blocks) == (biased, law, 8)
    assert ("Advice: none" in verdict.text) is biased
    if law == "exponential":
        assert verdict.growth.rate == pytest.approx(2, rel=0.2)


class NormalizedBlock(nn.Module):
    """x + f(x), with f's output normalized: it adds 1 to the variance."""

    def __init__(self, width):
        super().__init__()
        self.dense, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)

    def forward(self, x):
        return x + self.norm(self.dense(x.relu()))


@pytest.mark.parametrize(("width", "below"), [(8, True), (512, False)])
def test_narrow_networks_are_below_the_mean_that_the_theory_predicts(width, below):
    """The factor of a block is 2 on average. Of 50 in a row the median network has 1e-6 of the mean if they
    are 8 wide, and 0.86 if they are 512 wide."""

    class Unnormalized(nn.Linear):
        def forward(self, x):
            return x + super().forward(torch.relu(x))

    texts = []
    for seed in range(5):
        torch.manual_seed(seed)
        blocks = [Unnormalized(width, width, bias=False) for _ in range(50)]
        for block in blocks:
            nn.init.kaiming_normal_(block.weight, nonlinearity="relu")
        texts.append(probe(nn.Sequential(*blocks), torch.Size([64, width])).verdict.text)
    said = sum("Narrow networks are typically far below this mean." in text for text in texts)
    assert (said >= 4) is below
    assert all("the mean over He's weights" in text for text in texts)


def test_growth_is_that_of_blocks_in_a_row():
    """Between two stages stands a layer that is in no block; it lowers the variance a hundredfold."""
    torch.manual_seed(0)
    between = nn.Linear(64, 32, bias=False)
    nn.init.normal_(between.weight, std=0.1 / 8)
    stages = [nn.Sequential(*(NormalizedBlock(width) for _ in range(6))) for width in (64, 32)]
    growth = probe(nn.Sequential(stages[0], between, stages[1]), torch.Size([512, 64])).verdict.growth
    assert (growth.law, growth.rate, growth.blocks) == ("linear", pytest.approx(1, rel=0.1), 6)


class Normalized(nn.Module):
    """skip + f(x), with a normalized f; `after` follows each sum."""

    def __init__(self, depth, after, factor=1.0):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32)) for _ in range(depth)
        )
        self.after, self.factor = after, factor

    def forward(self, x):
        for block in self.blocks:
            x = self.after(self.factor * x + block(x))
        return x


def test_normalized_branches_of_a_small_network_add_up_linearly():
    """The ReLUs make the first few sums look like 1.3-fold growth; 40 blocks show that it is not."""
    torch.manual_seed(0)
    batch = 0.6 * torch.randn(256, 32)
    small, deep = (probe(Normalized(depth, torch.relu), batch) for depth in (8, 40))
    alone = fit_growth([row.skip_variance for row in small.rows])
    assert alone.law == "exponential"
    assert alone.rate > 1.2
    assert small.verdict.growth.law == deep.verdict.growth.law == "linear"
    small.check()
    assert "Advice: none; normalized branches add the same variance" in small.verdict.text


@pytest.mark.parametrize(("branches", "law"), [([1.5] * 4, "linear"), ([1, 2, 4, 8], "exponential")])
def test_a_first_branch_that_adds_nothing_does_not_hide_how_the_others_grow(branches, law):
    """As in the FT-Transformer, whose first attention averages tokens and has no norm."""
    branches = [0.001, *map(float, branches)]
    variances = list(accumulate(branches[:-1], initial=1.0))
    assert fit_growth(variances, branches).law == law


@pytest.mark.parametrize("branches", [[0, 1.5, 0, 0], [1.5, 0, 1.5, 0], [0, 0, 1.5, 1.5, 1.5]])
def test_branches_that_start_at_nothing_do_not_make_others_grow(branches):
    """As in diffusion models: convolutions that end a branch start at 0, attention does not."""
    variances = list(accumulate(map(float, branches[:-1]), initial=1.0))
    assert fit_growth(variances, branches).law == "linear"


def test_branches_of_which_most_start_at_nothing_explode():
    """Every third block doubles the variance: that is said, and SkipInit advised."""
    alphas = [torch.ones(6), *[torch.zeros(6), torch.zeros(6), torch.ones(6)] * 5]

    def double(m, x):
        for alpha in alphas:
            x = x + alpha * x.roll(1, 1) @ m.rotation
        return x

    model = Function(double)
    model.rotation = nn.Parameter(nn.init.orthogonal_(torch.empty(6, 6)))
    verdict = probe(model, vectors(64)).verdict
    assert verdict.typical_branch_share == 0
    assert verdict.growth.law == "exponential"
    assert verdict.growth.rate == pytest.approx(2 ** (1 / 3), rel=0.2)
    assert "scale each branch by a learned scalar" in verdict.text


def test_a_skip_that_grows_by_itself_is_not_blamed_on_normalized_branches():
    report = probe(Normalized(8, nn.Identity(), factor=2.0), torch.randn(256, 32))
    assert report.verdict.growth.law == "exponential"
    assert report.verdict.growth.rate == pytest.approx(4, rel=0.1)


def test_blocks_inside_branches_are_no_part_of_the_row():
    """Each branch ends in a block of its own, an adapter, whose signal is a hundredth of the stream's."""

    def adapt(m, x):
        for layer in (m.a, m.b, m.c):
            small = 0.1 * layer(x)
            x = x + (small + m.d(small))
        return x

    report = probe(Function(adapt), vectors(64))
    assert [add.follows for add in report.adds] == [None, None, None, "Function#2", None, "Function#4"]
    assert report.verdict.growth.blocks == 3
    assert report.verdict.growth.law == "constant"


def test_a_block_around_blocks_goes_on_from_the_block_before_it():
    def nest(m, x):
        for _ in range(3):
            inner = x + m.a(x)
            x = x + (inner + m.b(inner))
        return x

    adds = find_residual_adds(Function(nest), vectors(8))
    assert stages(adds) == [[0, 1], [2, 5, 8], [3, 4], [6, 7]]


def test_a_small_share_is_not_written_as_zero():
    text = probe(Function(lambda m, x: x + 1e-3 * m.a(x)), vectors(8)).verdict.text
    assert re.search(r"gives \d\.?\d*e-05 % of its block's output variance", text)


def test_a_projection_is_not_taken_for_the_start_of_growth():
    """In ResNet-V1 a ReLU follows each sum; with branches of 0 all skips behind a projection are alike."""
    growth = probe(create_model("resnet50_v1", scheme="skipinit", seed=0), images(4)).verdict.growth
    assert (growth.law, growth.blocks) == ("constant", 5)


def test_branches_of_nothing_are_not_blamed():
    """With every scalar 0 no block is least balanced, and growth on the skip is not mended by SkipInit."""
    alphas = [torch.zeros(6) for _ in range(6)]

    def grow(m, x):
        for alpha in alphas:
            x = 1.5 * x + alpha * m.a(x)
        return x

    verdict = probe(Function(grow), vectors(64)).verdict
    assert "Least balanced" not in verdict.text
    assert (verdict.growth.law, verdict.typical_branch_share) == ("exponential", 0)
    assert "Advice: the branches contribute nothing yet" in verdict.text


@pytest.mark.parametrize("depth", [3, 8, 24])
@pytest.mark.parametrize("size", [0.4, 1.0])
def test_a_variance_that_normalized_branches_keep_up_does_not_vanish(depth, size):
    """(x + f(x)) / sqrt(2) is v' = (v + b) / 2, which comes to b, the square of what scales the norm."""
    torch.manual_seed(0)
    model = Normalized(depth, lambda total: total / 2**0.5)
    for block in model.blocks:
        block.append(Scaled(size))
    report = probe(model, 2 * torch.randn(256, 32))
    growth = report.verdict.growth
    assert (growth.law, growth.blocks) == ("settling", depth)
    assert growth.rate == pytest.approx(size**2, rel=0.25)
    assert "The variance settles with depth, at about" in report.verdict.text
    assert "vanishes" not in report.verdict.text
    assert ("Advice: none" in report.verdict.text) is (depth < 20)
    report.check()
    assert "the skip variance settles, from " in str(broken(report, growth="constant"))


@pytest.mark.parametrize("first", [1e-4, 0.01, 10, 100, 1e4])
@pytest.mark.parametrize("blocks", [4, 10, 40])
def test_a_variance_settles_from_below_and_from_any_height(first, blocks):
    """(x + f(x)) / sqrt(2) with branches of variance 1: v = 1 + (first - 1) / 2^l."""
    growth = fit_growth([1 + (first - 1) / 2**block for block in range(blocks)], [1.0] * blocks)
    assert (growth.law, growth.rate) == ("settling", pytest.approx(1))
    torch.manual_seed(0)
    model = Normalized(blocks, lambda total: total / 2**0.5)
    report = probe(model, first**0.5 * torch.randn(256, 32))
    assert report.verdict.growth.law == "settling"
    assert "vanishes" not in report.verdict.text


@pytest.mark.parametrize("added", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("blocks", [4, 10, 40])
def test_a_variance_that_grows_on_does_not_settle(added, blocks):
    growth = fit_growth([1 + added * block for block in range(blocks)], [added] * blocks)
    assert (growth.law, growth.rate) == ("linear", pytest.approx(added))


def test_what_an_activation_takes_once_does_not_vanish():
    """relu(x + 0 f(x)): the first ReLU leaves 1/2 - 1/(2 pi) of a Gaussian's variance, later ones all."""
    model = Normalized(5, torch.relu)
    for block in model.blocks:
        nn.init.zeros_(block[1].weight)
    report = probe(model, torch.Size([4096, 32]))
    growth = report.verdict.growth
    assert (growth.law, growth.blocks) == ("settling", 5)
    assert growth.rate == pytest.approx(1 / 2 - 1 / (2 * math.pi), rel=0.02)
    assert "vanishes" not in report.verdict.text
    assert fit_growth([1.0, 50.0, 51.0, 49.0, 50.0]).law == "settling"


@pytest.mark.parametrize("rate", [0.5, 0.8, 1.25, 2.0])
@pytest.mark.parametrize("blocks", [3, 4, 5, 10, 40, 200])
@pytest.mark.parametrize("small", [False, True])
def test_an_exponential_does_not_settle(rate, blocks, small):
    """(1 + alpha^2) a block, or a factor on the skip and branches that add nothing."""
    variances = [rate**block for block in range(blocks)]
    branches = [1e-6 * v if small or rate < 1 else (rate - 1) * v for v in variances]
    growth = fit_growth(variances, branches)
    assert (growth.law, growth.rate, growth.blocks) == ("exponential", pytest.approx(rate), blocks)


class Doubling(nn.Module):
    """x + W x, which doubles the variance."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(32, 32) / 32**0.5)

    def forward(self, x):
        return x + x @ self.weight


@pytest.mark.parametrize("doubling_first", [True, False])
@pytest.mark.parametrize(("doublings", "law"), [(10, "exponential"), (5, "linear")])
def test_a_short_stage_that_explodes_is_not_overlooked(doubling_first, doublings, law):
    """A longer stage, with norms, is on the other side of a layer. 16-fold growth is not named."""
    torch.manual_seed(0)
    doubling = nn.Sequential(*(Doubling() for _ in range(doublings)))
    between = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32))
    parts = [doubling, between, Normalized(12, nn.Identity())]
    report = probe(nn.Sequential(*parts[:: 1 if doubling_first else -1]), torch.randn(256, 32))
    growth = report.verdict.growth
    if law == "linear":
        assert (growth.law, growth.blocks) == (law, 12)
        report.check()
    else:
        assert (growth.law, growth.blocks) == (law, doublings)
        assert growth.rate == pytest.approx(2, rel=0.15)
        (violation,) = broken(report).violations
        assert violation.blocks == tuple(f"{0 if doubling_first else 2}.{block}" for block in range(10))


@pytest.mark.parametrize(("rate", "blocks", "breaks"), [(1.15, 20, False), (1.15, 60, True), (0.9, 60, True)])
def test_slow_growth_that_goes_far_breaks_the_rule(rate, blocks, breaks):
    """a (x + b W x) multiplies the variance by a^2 (1 + b^2) a block: 14-, 3800- and 1/500-fold in all."""
    torch.manual_seed(0)
    branch = 0.3
    kept = (rate / (1 + branch**2)) ** 0.5

    def run(m, x):
        for weight in m.weights:
            x = kept * x + kept * branch * (x @ weight)
        return x

    model = Function(run)
    model.weights = nn.ParameterList(torch.randn(64, 64) / 8 for _ in range(blocks))
    report = probe(model, torch.randn(256, 64))
    growth = report.verdict.growth
    assert (growth.law, growth.rate) == ("exponential", pytest.approx(rate, rel=0.02))
    assert ("Advice: none" in report.verdict.text) is not breaks
    assert "at any depth" not in report.verdict.text
    if breaks:
        assert broken(report).violations[0].rule == "growth"
    else:
        report.check()


class Scaled(nn.Module):
    def __init__(self, factor) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return self.factor * x


def test_a_variance_that_small_branches_stop_far_below_vanishes():
    model = Normalized(8, nn.Identity(), factor=0.5)
    for block in model.blocks:
        block.append(Scaled(1e-3))
    report = probe(model, torch.randn(256, 32))
    assert report.verdict.growth.law == "exponential"
    assert "the signal vanishes" in report.verdict.text


@pytest.mark.parametrize(("factor", "vanishes"), [(0.5, True), (0.9, True), (0.95, False)])
def test_a_vanishing_signal_is_no_good_news(factor, vanishes):
    """c (x + 0.1 f(x)) multiplies the variance by about c² a block: 0.25, 0.81 and 0.90."""

    def fade(m, x):
        for layer in m.layers:
            x = factor * (x + 0.1 * layer(x))
        return x

    model = Function(fade)
    model.layers = nn.ModuleList(nn.Linear(6, 6, bias=False) for _ in range(10))
    report = probe(model, vectors(64))
    assert report.verdict.growth.rate == pytest.approx(factor**2, rel=0.05)
    assert ("the signal vanishes" in report.verdict.text) is vanishes
    assert ("Advice: none" in report.verdict.text) is not vanishes
    if vanishes:
        broken(report)
    else:
        report.check()


def test_no_signal_is_not_too_few_blocks():
    def silence(m, x):
        for layer in (m.a, m.b, m.c):
            x = 0 * x + 0 * layer(x)
        return x

    assert (
        "The variance is 0 somewhere over 3 blocks in a row"
        in probe(Function(silence), vectors(8)).verdict.text
    )


def theory_net(name, blocks=12):
    return probe(create_model(name, blocks=blocks, width=50, in_channels=50, seed=0), BATCH)


def broken(report, **rules):
    with pytest.raises(CheckError) as raised:
        report.check(**rules)
    assert isinstance(raised.value, SkipinitError)
    assert isinstance(raised.value, AssertionError)
    return raised.value


def test_growth_follows_the_papers_laws():
    """Unnormalized variance doubles a block, normalized variance grows by one."""
    exploding, normalized = theory_net("fc_linear"), theory_net("fc_linear_bn")
    normalized.check()
    normalized.check(growth="exponential")
    exploding.check(growth=None)
    exploding.check(growth="exponential")
    (violation,) = broken(exploding).violations
    assert (violation.rule, violation.blocks) == ("growth", tuple(row.name for row in exploding.rows))
    assert "changes exponentially" in str(violation)
    assert broken(normalized, growth="constant").violations[0].rule == "growth"


def test_shares_name_the_blocks_outside():
    report = theory_net("fc_linear_bn")
    shares = {row.name: row.branch_share for row in report.rows}
    limit = (report.rows[3].branch_share + report.rows[4].branch_share) / 2
    report.check(share=(min(shares.values()), max(shares.values())))
    (violation,) = broken(report, share=(0, limit)).violations
    assert violation.blocks == tuple(name for name, share in shares.items() if share > limit)
    assert f"{report.rows[0].name} ({report.rows[0].branch_share:.3g})" in str(violation)


def test_several_rules_are_told_at_once():
    error = broken(theory_net("fc_linear"), share=(0, 0.1))
    assert {violation.rule for violation in error.violations} == {"share", "growth"}
    assert str(error).count("\n") == 0


def test_infinity_is_named():
    report = probe(Function(lambda m, x: (y := x + m.a(x)) + m.b(y) * float("inf")), vectors(8))
    (violation,) = broken(report).violations
    assert (violation.rule, violation.blocks) == ("finite", (report.first_nonfinite,))
    report.check(finite=False)


def test_nothing_to_check_is_a_failure():
    assert "no residual add" in str(broken(probe(nn.Linear(6, 6), vectors(4))))


@pytest.mark.parametrize(
    "rules",
    [
        *({"share": share} for share in ((0.5, 0.1), (0, 2), 0.5, (0.5,), (0, "1"), "01")),
        *({"growth": growth} for growth in ("cubic", 3)),
    ],
)
def test_wrong_rules_are_one_line(rules):
    with pytest.raises(ConfigError, match=r"is not a range|'(cubic|3)' is not known"):
        theory_net("fc_linear", 3).check(**rules)


def test_growth_is_fitted_over_the_whole_range_of_numbers():
    """A float64 network of 100 blocks whose signal falls a hundredfold in each; and one that is huge."""
    fallen = fit_growth([10.0 ** (-2 * block) for block in range(100)])
    assert (fallen.law, fallen.rate) == ("exponential", pytest.approx(0.01))
    grown = fit_growth([1e170 * 1.5**block for block in range(10)])
    assert (grown.law, grown.rate) == ("exponential", pytest.approx(1.5))
    assert fit_growth([1e170 * block for block in range(1, 10)]).law == "linear"
    assert fit_growth([1e-300, 1.0, 1e300]).law == "exponential"


def test_a_broken_rule_can_be_sent_to_another_process():
    error = broken(theory_net("fc_linear", 8))
    there = pickle.loads(pickle.dumps(error))
    assert (str(there), there.violations) == (str(error), error.violations)
