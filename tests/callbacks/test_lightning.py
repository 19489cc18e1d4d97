"""The callback in a real Trainer of Lightning, against a plain loop."""

from __future__ import annotations

import csv

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from skipinit.callbacks.writers import CsvWriter
from skipinit.probing.watch import watch
from support.optional import package
from support.probe_models import Function, vectors

lightning = package("lightning.pytorch")
pytestmark = pytest.mark.filterwarnings("ignore")

BATCHES = [vectors(64)[i : i + 16] for i in range(8)]
TARGETS = torch.arange(16) % 6


def two_blocks(m, x):
    x = x + m.scalar * m.a(x)
    return x + m.b(F.relu(m.c(x)))


class Module(lightning.LightningModule):
    def __init__(self, through_forward):
        super().__init__()
        torch.manual_seed(0)
        self.model, self.through_forward = Function(two_blocks), through_forward

    def forward(self, x):
        return self.model(x)

    def training_step(self, batch, index):
        return F.cross_entropy((self if self.through_forward else self.model)(batch), TARGETS)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def fit(module, callback, folder, steps=8, ckpt_path=None, **options):
    options = {
        "max_steps": steps, "accelerator": "cpu", "enable_progress_bar": False, "log_every_n_steps": 1,
        "enable_model_summary": False, "enable_checkpointing": False, "logger": False, **options,
    }  # fmt: skip
    trainer = lightning.Trainer(default_root_dir=folder, callbacks=[callback], **options)
    trainer.fit(module, DataLoader(BATCHES, batch_size=None), ckpt_path=ckpt_path)
    return trainer


def plain():
    torch.manual_seed(0)
    model = Function(two_blocks)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with watch(model, every=2) as watching:
        for batch in BATCHES:
            optimizer.zero_grad()
            F.cross_entropy(model(batch), TARGETS).backward()
            optimizer.step()
    return watching.report()


@pytest.mark.parametrize("through_forward", [False, True])
def test_it_sees_what_a_plain_loop_sees(tmp_path, through_forward):
    from skipinit.callbacks.lightning import WatchCallback

    module, callback = Module(through_forward), WatchCallback(every=2)
    before = {key: dict(value) for key, value in vars(module.model).items() if key.endswith("hooks")}
    logger = lightning.loggers.CSVLogger(tmp_path)
    fit(module, callback, tmp_path, logger=logger)
    wanted = plain()
    for found, same in zip(callback.report().measurements, wanted.measurements, strict=True):
        assert [row.to_dict() | {"name": ""} for row in found.rows] == [
            row.to_dict() | {"name": ""} for row in same.rows
        ]
    assert {key: dict(value) for key, value in vars(module.model).items() if key.endswith("hooks")} == before
    with open(f"{logger.log_dir}/metrics.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert [int(line["step"]) for line in lines] == [0, 2, 4, 6]
    name = wanted.measurements[0].rows[0].name
    column = f"branch_share/{'model' if through_forward else name}"
    assert float(lines[0][column]) == pytest.approx(wanted.series(name)[0])


def test_accumulation_and_resume(tmp_path):
    from skipinit.callbacks.lightning import WatchCallback

    callback = WatchCallback(every=2)
    fit(Module(False), callback, tmp_path, steps=3, accumulate_grad_batches=2)
    assert callback.report().steps == (0, 2)

    first = WatchCallback(every=2)
    trainer = fit(Module(False), first, tmp_path, steps=3)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    second = WatchCallback(every=2)
    fit(Module(False), second, tmp_path, ckpt_path=tmp_path / "last.ckpt")
    assert second.report().steps == plain().steps
    assert second.report().measurements[:2] == first.report().measurements


def test_a_second_fit_continues_with_another_module(tmp_path):
    from skipinit.callbacks.lightning import WatchCallback

    callback = WatchCallback(every=2)
    fit(Module(False), callback, tmp_path, steps=3)
    first, module = callback.report().measurements, Module(False)
    fit(module, callback, tmp_path, steps=3)
    assert callback.report().steps == (0, 2, 4)
    assert callback.report().measurements[:2] == first
    assert not module.model._forward_pre_hooks


def test_a_failing_training_leaves_no_hook(tmp_path):
    from skipinit.callbacks.lightning import WatchCallback

    class Failing(Module):
        def training_step(self, batch, index):
            loss = super().training_step(batch, index)
            if index == 1:
                raise RuntimeError("no more")
            return loss

    module, callback = Failing(False), WatchCallback(every=1)
    with pytest.raises(RuntimeError, match="no more"):
        fit(module, callback, tmp_path)
    assert not module.model._forward_pre_hooks
    assert callback.report().steps[0] == 0


def test_a_module_that_is_never_called_says_so():
    from skipinit.callbacks.lightning import WatchCallback

    assert "called neither" in str(WatchCallback().report())


def test_of_several_processes_the_first_writes(tmp_path):
    from skipinit.callbacks.lightning import WatchCallback

    trainer = lightning.Trainer(
        max_steps=2, accelerator="cpu", devices=2, default_root_dir=tmp_path,
        strategy="ddp_fork_find_unused_parameters_true",
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, logger=False,
        callbacks=[WatchCallback(every=1, writers=[CsvWriter(tmp_path / "balance.csv"), Ranks(tmp_path)])],
    )  # fmt: skip
    trainer.fit(Module(True), DataLoader(BATCHES, batch_size=None))
    assert [path.name for path in tmp_path.glob("rank*")] == ["rank0"]
    lines = list(csv.DictReader((tmp_path / "balance.csv").open(newline="")))
    assert [line["step"] for line in lines] == ["0", "0", "1", "1"]


class Ranks:
    """Leaves a file for each process that writes."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, measurement):
        (self.folder / f"rank{torch.distributed.get_rank()}").touch()
