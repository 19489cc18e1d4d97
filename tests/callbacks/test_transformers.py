"""The callback in a real Trainer of Hugging Face's transformers, on a small GPT-2, against a plain loop."""

from __future__ import annotations

import pytest
import torch

from skipinit.callbacks.writers import CsvWriter
from skipinit.errors import DataError
from skipinit.probing.watch import watch
from support.optional import package

transformers = package("transformers", "Trainer", "GPT2LMHeadModel")
package("accelerate")
pytestmark = pytest.mark.filterwarnings("ignore")

TOKENS = torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0))


def small_gpt2():
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_positions=12, n_embd=16, n_layer=2, n_head=2,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def train(callback, folder, steps=5, resume=False, **options):
    """All examples in each batch, so that their order does not matter."""
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), max_steps=steps, use_cpu=True, report_to=[], disable_tqdm=True,
        learning_rate=1e-2, lr_scheduler_type="constant", optim="adamw_torch",
        **{"per_device_train_batch_size": 8, "save_strategy": "no", **options},
    )  # fmt: skip
    examples = [{"input_ids": row, "labels": row} for row in TOKENS]
    trainer = transformers.Trainer(small_gpt2(), arguments, train_dataset=examples, callbacks=[callback])
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def test_it_sees_what_a_plain_loop_sees(tmp_path):
    from skipinit.callbacks.transformers import WatchCallback

    path = tmp_path / "balance.csv"
    callback = WatchCallback(every=2, writers=[CsvWriter(path)])
    trainer = train(callback, tmp_path)
    assert not trainer.model._forward_pre_hooks
    model = small_gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    with watch(model, every=2) as watching:
        for _ in range(5):
            optimizer.zero_grad()
            # The Trainer divides the loss by the number of all labels.
            model(input_ids=TOKENS, labels=TOKENS, num_items_in_batch=TOKENS.numel()).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert callback.report().steps == (0, 2, 4)
    assert len(callback.report().blocks) == 4
    for found, same in zip(callback.report().measurements, watching.report().measurements, strict=True):
        for row, wanted in zip(found.rows, same.rows, strict=True):
            assert row.name == wanted.name
            assert row.branch_share == pytest.approx(wanted.branch_share, rel=1e-3)
            assert row.gradient_norm == pytest.approx(wanted.gradient_norm, rel=1e-3)
            assert row.parameter_gradient_norm == pytest.approx(wanted.parameter_gradient_norm, rel=1e-3)
            assert row.update_ratio == pytest.approx(wanted.update_ratio, rel=1e-3)
    assert path.read_text() == callback.report().to_csv()


def test_accumulation_and_resume(tmp_path):
    from skipinit.callbacks.transformers import WatchCallback

    options = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    whole, first, second = (WatchCallback(every=2) for _ in range(3))
    train(whole, tmp_path / "whole", 6, **options)
    train(first, tmp_path / "two", 4, save_strategy="steps", save_steps=4, **options)
    train(second, tmp_path / "two", 6, resume=True, **options)
    assert whole.report().steps == second.report().steps == (0, 2, 4)
    assert second.report().measurements[:2] == first.report().measurements


def test_a_second_training_starts_anew(tmp_path):
    from skipinit.callbacks.transformers import WatchCallback

    callback = WatchCallback(every=2)
    trainer = train(callback, tmp_path, steps=3)
    first = callback.report()
    trainer.train()
    assert callback.report().steps == first.steps == (0, 2)
    assert callback.report().measurements != first.measurements  # The weights are those of the first.
    assert not trainer.model._forward_pre_hooks


def test_damaged_measurements_are_refused_in_one_line(tmp_path):
    from skipinit.callbacks.transformers import WatchCallback

    train(WatchCallback(every=2), tmp_path, 2, save_strategy="steps", save_steps=2)
    (saved,) = tmp_path.glob("checkpoint-2/skipinit_watch.json")
    saved.write_text(saved.read_text()[:-9])
    with pytest.raises(DataError, match=r"skipinit_watch.json is damaged .*; delete it to resume"):
        train(WatchCallback(every=2), tmp_path, 4, resume=True)
