"""Programs in documents that several processes run: their first line is the command.

They are `python` blocks that begin with `# torchrun ... NAME.py`, variables before it.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tests.checking.installed import search_path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?ms)^```python\n(# [^\n]*torchrun [^\n]*\n.*?)^```$")
COMMAND = re.compile(r"# ((?:\w+=\S+ )*)torchrun (.*?)(\w+\.py)\n")


@dataclass(frozen=True)
class Launched:
    """A program, and how it is run."""

    name: str
    text: str
    options: tuple[str, ...]
    variables: tuple[tuple[str, str], ...]

    def on(self, backend):
        """Return the same program on another backend than stretto."""
        text = self.text.replace('"stretto"', f'"{backend}"')
        return replace(self, text=text, variables=())


def launched(page):
    """Return the programs of a page, in order."""
    found = []
    for text in BLOCK.findall((ROOT / page).read_text()):
        variables, options, name = COMMAND.match(text).groups()
        pairs = tuple(tuple(word.split("=", 1)) for word in variables.split())
        found.append(Launched(name, text, tuple(options.split()), pairs))
    return found


def launch(program, folder, *, timeout_s):
    """Run a program as its first line says; return what it printed."""
    path = folder / program.name
    path.write_text(program.text)
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *program.options, str(path)],
        cwd=folder,
        env=os.environ | _environment(folder) | dict(program.variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert 0 == done.returncode, done.stdout
    return done.stdout


def _environment(folder):
    """Return what a program is given: this tree, and no hub to ask."""
    return {
        "PYTHONPATH": search_path(folder),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
