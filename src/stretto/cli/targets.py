"""What a command is about: a catalogue name, `FILE.py:variable`, a program's text.

A file is run as Python runs it. What goes wrong in it is told in one line, with the
file and line where it did.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from stretto import algorithms, collectives
from stretto.epilogues import Epilogue
from stretto.errors import CallError, ParseError, StrettoError
from stretto.ir import Program, parse_program
from stretto.lang import Algorithm

__all__ = [
    "add_params",
    "add_target",
    "build",
    "find",
    "find_epilogue",
    "group_of",
    "numbers",
    "params_of",
    "ranks_of",
]

_MOST_RANKS = 1 << 16


def add_target(parser: argparse.ArgumentParser) -> None:
    """Add the algorithm that a command is about, and its parameters."""
    parser.add_argument(
        "algorithm",
        metavar="ALGORITHM",
        help="a name of `stretto list`, FILE.py:variable, or a program's text file",
    )
    add_params(parser)


def add_params(parser: argparse.ArgumentParser) -> None:
    """Add the parameters that an algorithm's function takes."""
    parser.add_argument(
        "--param",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a parameter of the algorithm, such as root=1; may be repeated",
    )


def params_of(args: argparse.Namespace) -> dict[str, object]:
    """Return the parameters that were given."""
    found: dict[str, object] = {}
    for text in args.param:
        name, equals, value = text.partition("=")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            equals = ""
        if not equals:
            raise CallError(
                f"--param {text}: want NAME=VALUE, VALUE as Python writes it"
            )
    return found


def numbers(text: str) -> list[int]:
    """Return the numbers of ranks in `2,3,4-8`."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low, high = _number(first), _number(last if dash else first)
        if low is None or high is None or not 1 <= low <= high <= _MOST_RANKS:
            raise CallError(
                f"ranks {text[:80]!r}: {part[:80]!r}; want numbers such as 2,3,4-8, at "
                f"most {_MOST_RANKS}"
            )
        found += range(low, high + 1)
    return found


def group_of(text: str) -> list[int]:
    """Return the ranks of a machine in `0-3,8`."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low, high = _number(first), _number(last if dash else first)
        if low is None or high is None or not low <= high <= _MOST_RANKS:
            raise CallError(
                f"--group {text[:80]}: got {part[:80]!r}; want ranks such as 0-3,8"
            )
        found += range(low, high + 1)
    return found


def _number(text: str) -> int | None:
    """Return a number written in plain digits, or None."""
    plain = text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if plain else None


def ranks_of(text: str) -> int:
    """Return a number of ranks, for an option of the command line."""
    number = _number(text)
    if number is None or not 1 <= number <= _MOST_RANKS:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}; want a number from 1 to {_MOST_RANKS}"
        )
    return number


def find(name: str) -> Algorithm | Program:
    """Return what a name on the command line means."""
    path, colon, variable = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _from_python(Path(path), variable)
    if name.endswith(".py"):
        return _from_python(Path(name), "")
    if name.endswith((".xml", ".json")):
        return _from_foreign(Path(name))
    if "/" in name and name.split("/")[0] in collectives.names():
        return algorithms.get(name)
    if Path(name).is_file():
        return _from_text(Path(name))
    if Path(name).suffix:
        raise CallError(f"no file {name}; want a program's text, or FILE.py:variable")
    return algorithms.get(name)


def find_epilogue(name: str) -> Epilogue:
    """Return the epilogue `FILE.py:variable`, or the only one of a file."""
    head, colon, variable = name.rpartition(":")
    path = Path(head if colon and head.endswith(".py") else name)
    variable = variable if path.name != Path(name).name else ""
    if path.suffix != ".py" or not path.is_file():
        raise CallError(f"--epilogue {name}: no such file; want FILE.py:variable")
    here = {k: v for k, v in _run_file(path).items() if isinstance(v, Epilogue)}
    if not variable and len(here) == 1:
        return next(iter(here.values()))
    if variable not in here:
        raise CallError(
            f"--epilogue {name}: {path} has "
            f"{', '.join(sorted(here)) or 'nothing that @epilogue made'}; want "
            f"{path}:NAME with one of these"
        )
    return here[variable]


def build(
    found: Algorithm | Program, num_ranks: int, params: dict[str, Any]
) -> Program:
    """Return the program for a number of ranks."""
    if isinstance(found, Algorithm):
        return found.build(num_ranks, **params)
    if found.num_ranks != num_ranks or params:
        raise CallError(
            f"program {found.name} is for {found.num_ranks} ranks, without parameters; "
            f"got {num_ranks} and {params}"
        )
    return found


def _from_text(path: Path) -> Program:
    try:
        return parse_program(path.read_text(encoding="utf-8"), str(path))
    except (ParseError, UnicodeDecodeError) as e:
        raise ParseError(f"{path}: {e}") from None


def _from_foreign(path: Path) -> Program:
    """Return the program of an MSCCL XML file or of an MSCCL++ JSON plan."""
    from stretto import synth

    if not path.is_file():
        raise CallError(f"no file {path}; want MSCCL XML or an MSCCL++ plan")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ParseError(f"{path}: {e}; want text in UTF-8") from None
    return synth.from_xml(text) if path.suffix == ".xml" else synth.from_plan(text)


def _from_python(path: Path, variable: str) -> Algorithm | Program:
    if not path.is_file():
        raise CallError(f"no file {path}; want FILE.py:variable")
    here = _variables(path)
    if not variable:
        if len(here) != 1:
            raise CallError(
                f"{path} has {len(here)} algorithms; want {path}:NAME with NAME one of "
                f"{', '.join(sorted(here)) or 'those that @algorithm makes'}"
            )
        return next(iter(here.values()))
    if variable not in here:
        raise CallError(
            f"{path}: no algorithm or program named {variable!r}; it has "
            f"{', '.join(sorted(here)) or 'none'}"
        )
    return here[variable]


def _variables(path: Path) -> dict[str, Algorithm | Program]:
    """Return the algorithms and programs of a file, by name."""
    return {
        name: value
        for name, value in _run_file(path).items()
        if isinstance(value, Algorithm | Program)
    }


def _run_file(path: Path) -> dict[str, Any]:
    """Return what a file names when it has run."""
    spec = importlib.util.spec_from_file_location(f"stretto_user_{path.stem}", path)
    assert spec is not None, "a .py file has a loader"
    assert spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except StrettoError as e:
        raise type(e)(f"{_place(path, e)}: {e}") from None
    except Exception as e:
        raise CallError(
            f"{_place(path, e)}: {type(e).__name__}: {e}; want a file that runs"
        ) from None
    return vars(module)


def _place(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{path}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if Path(frame.filename) == path:
            return f"{path}:{frame.lineno}"
    return str(path)
