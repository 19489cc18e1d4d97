"""Progress in a log: a line each minute, and none where nothing is to be shown."""

from __future__ import annotations

import signal
from types import SimpleNamespace

import pytest

from skipinit.training import control


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM])
def test_a_second_interrupt_does_not_wait(first: int) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    stop = control.Stop()
    with control.stopped_by_signals(stop):
        assert not stop.requested
        signal.raise_signal(first)
        assert stop.requested
        if first == signal.SIGTERM:
            signal.raise_signal(signal.SIGINT)  # the first that a person asks for
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize("shown", [True, False])
def test_a_log_gets_a_line_each_minute(
    shown: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=lambda: now))
    with control.steps_bar(540, shown) as bar:
        for step in range(1, 541):  # of half a second each
            now += 0.5
            bar.update(step, f"epoch {step // 90}" if step % 90 == 0 else None)
        bar.advance(0)
    printed = capsys.readouterr()
    lines = [line.partition(", about ")[0] for line in printed.err.splitlines()]
    assert lines == (["epoch 1, 120/540", "epoch 2, 240/540", "epoch 4, 360/540", "epoch 5, 480/540"] * shown)
    assert printed.out == ""
