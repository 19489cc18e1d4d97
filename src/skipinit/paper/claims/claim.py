"""What a claim is: a statement of the paper, the rules that decide it, and the verdict they reach."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from ..measured import Measurements

State = Literal["holds", "does not hold", "not measured yet"]


@dataclass(frozen=True)
class Verdict:
    """What measurements say of a claim, and the numbers that say it."""

    state: State
    evidence: str


def verdict(holds: bool, evidence: str) -> Verdict:
    """The verdict of something measured."""
    return Verdict("holds" if holds else "does not hold", evidence)


def missing(what: str) -> Verdict:
    """The verdict of something that is still to be measured."""
    return Verdict("not measured yet", f"missing: {what}")


def all_of(verdicts: Iterable[Verdict]) -> Verdict:
    """One contradiction refutes, whatever is missing; else that leaves it open. What decides comes first."""
    everything = list(verdicts)
    order: tuple[State, ...] = ("does not hold", "not measured yet", "holds")
    ranked = sorted(everything, key=lambda each: order.index(each.state))
    state = ranked[0].state
    told = [each for each in ranked if state != "does not hold" or each.state != "not measured yet"]
    return Verdict(state, "; ".join(dict.fromkeys(each.evidence for each in told)))


@dataclass(frozen=True)
class Rule:
    """How measurements decide."""

    exhibit: str
    """The table, sweep or figure it reads."""
    needs: str
    """What of it must be measured."""
    criterion: str
    """What must be so, with our reading of words like `similar`."""
    judge: Callable[[Measurements], Verdict]


@dataclass(frozen=True)
class Claim:
    """One statement of the paper that measurements can contradict."""

    id: str
    section: str
    statement: str
    """In our words."""
    rules: tuple[Rule, ...]
    """It holds if all of them do."""

    @property
    def exhibits(self) -> tuple[str, ...]:
        """The tables, sweeps and figures to measure."""
        return tuple(dict.fromkeys(rule.exhibit for rule in self.rules))

    @property
    def needs(self) -> str:
        """What must be measured to decide it."""
        return "; ".join(dict.fromkeys(rule.needs for rule in self.rules))

    @property
    def criterion(self) -> str:
        """What must be so for it to hold."""
        return "; ".join(dict.fromkeys(rule.criterion for rule in self.rules))

    def check(self, measurements: Measurements) -> Verdict:
        """Whether it holds in these measurements."""
        return all_of(rule.judge(measurements) for rule in self.rules)
