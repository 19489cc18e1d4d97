"""The commit that stands behind a number."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from skipinit import provenance


def _git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    return subprocess.run(
        ["git", "-C", folder, *who, *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_the_commit_is_that_of_the_checkout_which_tracks_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SKIPINIT_COMMIT", raising=False)
    module = tmp_path / "provenance.py"
    module.write_text("first")
    monkeypatch.setattr(provenance, "__file__", str(module))
    assert provenance.source_commit() is None, "no checkout"
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "commit", "--quiet", "--allow-empty", "--message", "another project")
    assert provenance.source_commit() is None, "installed inside the checkout of another project"
    _git(tmp_path, "add", "provenance.py")
    _git(tmp_path, "commit", "--quiet", "--message", "the package")
    commit = _git(tmp_path, "log", "-1", "--format=%H")
    assert provenance.source_commit() == commit
    (tmp_path / "notes").write_text("not tracked")
    assert provenance.source_commit() == commit
    module.write_text("changed")
    assert provenance.source_commit() == f"{commit}-dirty"
    monkeypatch.setenv("SKIPINIT_COMMIT", "0123abc")
    assert provenance.source_commit() == "0123abc"


def test_without_git_no_commit_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIPINIT_COMMIT", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    assert provenance.source_commit() is None
