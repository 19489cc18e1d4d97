"""The code blocks of Markdown files; and running those of the tutorials, whose output and pictures they make.

python docs/snippets.py docs/tutorials/*.md     # trains; a few minutes

The Python blocks of a file run one after the other, as one program; what a block prints replaces the text
block behind it. Console blocks run line by line. All of it happens in an empty folder, from which the
pictures that the file shows are copied.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRAMS = "skipinit|python|torchrun|pip|make|ray"
_PICTURE = re.compile(r"!\[[^\]]*\]\((\S+)\)")


@dataclass(frozen=True)
class Block:
    """What stands between two fences."""

    language: str
    text: str
    start: int
    """Where the text begins in the file."""
    end: int
    line: int
    """The number of its first line."""

    @property
    def commands(self) -> list[str]:
        """The command lines as written: those behind a prompt, or those that begin with a program."""
        start = r"^\$ " if self.language == "console" else rf"^(?=(?:[A-Z_]+=\S+ )?(?:{_PROGRAMS}) )"
        return [found[1] for found in re.finditer(rf"{start}((?:.*\\\n)*.*)", self.text, re.MULTILINE)]


def blocks(text: str) -> list[Block]:
    """All blocks of a Markdown file, in order."""
    return [
        Block(found[1], found[2], found.start(2), found.end(2), text.count("\n", 0, found.start(2)) + 1)
        for found in _BLOCK.finditer(text)
    ]


def run(path: Path) -> None:
    """Run a tutorial and rewrite its outputs and pictures."""
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "skipinit"  # a picture that shows the same is the same file
    text, home = path.read_text(encoding="utf-8"), Path.cwd()
    found, program = blocks(text), ModuleType("tutorial")
    sys.modules[program.__name__] = program  # where pickle looks for the classes of the tutorial
    outputs: dict[Block, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for block, after in zip(found, [*found[1:], None], strict=True):
                if block.language == "console":
                    outputs[block] = "".join(f"$ {line}\n{_shell(line)}" for line in block.commands)
                elif block.language == "python":
                    printed = io.StringIO()
                    with redirect_stdout(printed):
                        exec(compile(block.text, f"{path}:{block.line}", "exec"), program.__dict__)
                    if after is not None and after.language == "text":
                        outputs[after] = printed.getvalue()
        finally:
            os.chdir(home)
        for picture in _PICTURE.findall(text):
            if (made := Path(folder, Path(picture).name)).exists():
                shutil.copy(made, path.parent / picture)
    for block, output in reversed(outputs.items()):
        text = text[: block.start] + output.rstrip("\n") + "\n" + text[block.end :]
    path.write_text(text, encoding="utf-8")


def _shell(line: str) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PATH": path}
    done = subprocess.run(line, shell=True, env=settings, text=True, stdout=subprocess.PIPE, check=True)
    return "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        run(Path(argument))
