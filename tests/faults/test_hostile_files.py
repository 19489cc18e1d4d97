"""Files from strangers: what they say is shown as text and never run, and none takes the machine down."""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from pathlib import Path

import pytest

from skipinit.cli import main
from skipinit.data.photographs import CentreCrop, read_image
from skipinit.errors import DataError, SkipinitError
from skipinit.nets.create import create_model, from_pretrained

RESULTS = Path(__file__).parents[2] / "results" / "wrn16_2-cifar10-protocol.jsonl"
SCRIPT, STEERING, SQL = "<script>alert(1)</script>", "\x1b[2J\x07", "'); DROP TABLE trials; --"


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """Results of a stranger, with something in each text that they can choose."""
    header, first, *others = RESULTS.read_text().splitlines()
    trial = json.loads(first)
    trial["config"]["data"] = f"/{SCRIPT}{STEERING}{SQL}"
    trial |= {"reason": SCRIPT + STEERING, "started": SCRIPT + STEERING, "ended": SQL}
    trial["provenance"] |= {"machine": SCRIPT, "device": SCRIPT + STEERING, "commit": SCRIPT}
    trial["provenance"]["versions"] = {SCRIPT: SCRIPT + STEERING}
    known = json.loads(others[0])
    known["provenance"] |= {"machine": SCRIPT, "device": SCRIPT + STEERING, "commit": SCRIPT}
    known |= {"reason": SCRIPT}
    file = tmp_path / "results.jsonl"
    file.write_text("\n".join([header, json.dumps(trial), json.dumps(known), *others[1:]]))
    return file


def test_texts_of_strangers_are_shown_as_text(
    hostile: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, page = tmp_path / "store", tmp_path / "page.html"
    assert main(["store", "import", str(store), str(hostile)]) == 0
    for command in ("status", "results", "claims"):
        assert main([command, str(store)]) == 0
        assert "\x1b" not in capsys.readouterr().out, command
    assert main(["report", str(store), "--out", str(page)]) == 0
    html = page.read_text()
    assert "&lt;script&gt;alert" in html
    assert SCRIPT not in html
    assert main(["results", str(store), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out.partition("\n")[2])["trials"]
    assert len(rows) == len(hostile.read_text().splitlines()) - 1


@pytest.mark.parametrize("size", [0, 2**32, 2**62, 2**64 - 1])
def test_a_safetensors_header_of_an_absurd_size(size: int, tmp_path: Path) -> None:
    create_model("wrn10_1", seed=0).save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(struct.pack("<Q", size) + weights.read_bytes()[8:])
    with pytest.raises(SkipinitError, match=r"model\.safetensors: is damaged"):
        from_pretrained(tmp_path)


def test_a_photograph_that_would_fill_the_memory(tmp_path: Path) -> None:
    """A PNG of a few hundred bytes that says it is 60,000 x 60,000: 10 GB of pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + checksum

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    content = zlib.compress(bytes(100_000))
    bomb = tmp_path / "bomb.png"
    bomb.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", content) + chunk(b"IEND", b"")
    )
    with pytest.raises(DataError, match=r"bomb\.png: not a readable image"):
        read_image(bomb, 0, CentreCrop())


def test_a_folder_of_photographs_may_have_any_names(tmp_path: Path) -> None:
    pictures = tmp_path / f"{SCRIPT.replace('/', '')}{STEERING}"
    assert main(["train", "resnet50_v2", "--data", str(pictures), "--lr", "0.1", "--epochs", "1"]) != 0
    assert not pictures.exists()
    shutil.rmtree(tmp_path / "runs", ignore_errors=True)
