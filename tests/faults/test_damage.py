"""Random damage to every kind of file: it is found and named, or what is read is what was written."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch

import skipinit
from skipinit.cli import main
from skipinit.config import ModelConfig, TrainConfig
from skipinit.errors import SkipinitError
from skipinit.nets.create import from_pretrained
from skipinit.sweeping import database
from skipinit.sweeping.exchange import read_results
from skipinit.sweeping.single import train
from skipinit.sweeping.trained import evaluate
from skipinit.training.checkpoint import unpack_state
from skipinit.training.control import Stop
from support.torture import Torture


class _AtOnce(Stop):
    @property
    def requested(self) -> bool:
        return True


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one stopped after a step, their export and a saved network."""
    root = tmp_path_factory.mktemp("whole")
    config = TrainConfig(ModelConfig("wrn10_1", "skipinit"), "digits", lr=0.1, batch_size=512, epochs=1)
    train(config, root / "run", device="cpu", progress=False)
    train(config, root / "stopped", device="cpu", progress=False, stop=_AtOnce())
    skipinit.create_model("wrn10_1", scheme="skipinit", seed=0).save_pretrained(root / "model")
    assert main(["store", "export", str(root / "run"), str(root / "results.jsonl")]) == 0
    return root


def damage(content: bytes, generator: random.Random) -> bytes:
    """Flip some bits, cut the end off, fill a stretch with zeros, or put a stretch elsewhere."""
    size = len(content)
    start, stop = sorted(generator.sample(range(size + 1), 2))
    changed = bytearray(content)
    match generator.randrange(4):
        case 0:
            for place in generator.choices(range(size), k=generator.choice([1, 1, 1, 8])):
                changed[place] ^= 1 << generator.randrange(8)
        case 1:
            del changed[start:]
        case 2:
            changed[start:stop] = bytes(stop - start)
        case 3:
            changed[start:stop] = content[size - (stop - start) :]
    return bytes(changed)


def equal(one: Any, other: Any) -> bool:
    """Deep equality, tensors and not-a-number included."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def read_model(path: Path) -> object:
    model = from_pretrained(path.parent)
    return model.config, dict(model.state_dict())


def checkpoint_in(folder: Path) -> Path:
    [path] = (folder / "checkpoints").iterdir()
    return path


KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], object]]] = {
    "checkpoint": (lambda root: checkpoint_in(root / "stopped"), unpack_state),
    "export": (lambda root: root / "results.jsonl", read_results),
    "weights": (lambda root: root / "model" / "model.safetensors", read_model),
    "config": (lambda root: root / "model" / "config.json", read_model),
    "store": (lambda root: root / "run" / "sweep.sqlite", lambda path: skipinit.results(path.parent)),
    "progress": (lambda root: root / "run" / "sweep.sqlite", lambda path: skipinit.status(path.parent)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_named_or_harmless(kind: str, whole: Path, tmp_path: Path, torture: Torture) -> None:
    find, read = KINDS[kind]
    path = find(shutil.copytree(whole, tmp_path / "copy"))
    content, expected = path.read_bytes(), read(path)
    found = tried = 0
    for seed in torture.cases(40):
        tried += 1
        torture.count("damaged files")
        path.write_bytes(damage(content, random.Random(seed)))
        try:
            result = read(path)
        except SkipinitError as error:
            line = str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        else:
            assert equal(result, expected), f"seed {seed}: read as something else"
            continue
        assert str(path.parent) in line, f"seed {seed}: {line}"
        assert "\n" not in line, f"seed {seed}: {line}"
        found += 1
    assert found >= tried // 2, "the damage is too mild to test anything"


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE meta SET value = '2026-11-1?T00:58:16+00:00' WHERE name = 'session_started'",
        "UPDATE meta SET value = '2026-11-16T00:58:16' WHERE name = 'session_started'",
        "UPDATE meta SET value = x'00' WHERE name = 'session_epochs'",
        "UPDATE meta SET name = 'session_epoch?' WHERE name = 'session_epochs'",
    ],
)
def test_damage_to_the_times_of_a_session_is_named(change: str, whole: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(whole / "run", tmp_path / "run")
    with closing(sqlite3.connect(folder / "sweep.sqlite", isolation_level=None)) as connection:
        connection.execute(change)
    with pytest.raises(SkipinitError, match="is damaged"):
        skipinit.status(folder)
    assert equal(skipinit.results(folder), skipinit.results(whole / "run"))


def test_a_checkpoint_reads_the_same_from_memory(whole: Path) -> None:
    path = checkpoint_in(whole / "stopped")
    with path.open("rb") as file:
        assert equal(unpack_state(file), unpack_state(path))


def test_a_damaged_checkpoint_is_never_evaluated(whole: Path, tmp_path: Path) -> None:
    run = shutil.copytree(whole / "stopped", tmp_path / "run")
    path = checkpoint_in(run)
    content = path.read_bytes()
    path.write_bytes(content[:5000] + bytes([content[5000] ^ 1]) + content[5001:])
    with pytest.raises(SkipinitError, match="is damaged"):
        evaluate(run, device="cpu")


def test_a_damaged_definition_that_is_no_text_is_named(whole: Path, tmp_path: Path) -> None:
    """SQLite quotes it in its message, which Python then cannot decode."""
    path = shutil.copytree(whole / "run", tmp_path / "run") / "sweep.sqlite"
    content = path.read_bytes()
    assert content.count(b"CREATE TABLE trials (") == 1
    path.write_bytes(content.replace(b"CREATE TABLE trials (", b"CREATE TABLE tr\x89als )"))
    with pytest.raises(SkipinitError, match="damaged"):
        skipinit.results(tmp_path / "run")


def test_a_length_that_cannot_be_is_named(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite refuses to read more than its limit, of a gigabyte or, here, of 100 bytes."""
    connect = database._connect

    def connect_limited(address: str) -> sqlite3.Connection:
        connection = connect(address)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 100)
        return connection

    monkeypatch.setattr(database, "_connect", connect_limited)
    with pytest.raises(SkipinitError, match="damaged"):
        skipinit.results(whole / "run")


@pytest.mark.parametrize("number", [1, 2])
def test_a_damaged_schema_number_is_named(number: int, whole: Path, tmp_path: Path) -> None:
    """The tables would be brought up to date a second time."""
    path = shutil.copytree(whole / "run", tmp_path / "run") / "sweep.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE meta SET value = ? WHERE name = 'schema'", (number,))
    with pytest.raises(SkipinitError, match="damaged"):
        skipinit.results(tmp_path / "run")


@pytest.mark.parametrize("table", ["trials", "sqlite_autoindex_trials_1"])
def test_a_page_that_says_it_is_empty_is_named(table: str, whole: Path, tmp_path: Path) -> None:
    """To SQLite such a page is in order: the trials would be gone without a word."""
    path = shutil.copytree(whole / "run", tmp_path / "run") / "sweep.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        [(page,)] = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,))
        [(size,)] = connection.execute("PRAGMA page_size")
    content = bytearray(path.read_bytes())
    cells = slice((page - 1) * size + 3, (page - 1) * size + 5)  # of the header of a b-tree's page
    assert content[cells] == b"\0\1"
    content[cells] = b"\0\0"
    path.write_bytes(content)
    with pytest.raises(SkipinitError, match="damaged"):
        skipinit.results(tmp_path / "run")
