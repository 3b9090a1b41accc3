"""What a command is about: a catalogue name, `FILE.py:variable`, a program's text.

A file is run as Python runs it. What goes wrong in it is told in one line, with the
file and line where it did.
"""

from __future__ import annotations
import __future__

import argparse
import ast
import contextlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

from stretto.errors import CallError, ParseError, ProgramError, StrettoError
from stretto.program import algorithms, collectives, foreign
from stretto.program.epilogues import Epilogue
from stretto.program.ir import Program, parse_program
from stretto.program.lang import Algorithm

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


def add_dead_link(parser: argparse.ArgumentParser) -> None:
    """Add the links of a machine that do not work."""
    parser.add_argument(
        "--dead-link",
        action="append",
        default=[],
        metavar="LINK",
        help="a link that does not work, such as '0->1'; may be repeated",
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


_MOST_NUMBERS = 4096


def numbers(text: str, what: str = "ranks") -> list[int]:
    """Return the numbers in `2,3,4-8`, of ranks or of what is said."""
    found: list[int] = []
    for part, run in _parts(text, 1):
        if run is None:
            raise CallError(
                f"{what} {text[:80]!r}: {part[:80]!r}; want numbers such as 2,3,4-8, "
                f"rising, to {_MOST_RANKS} and at most {_MOST_NUMBERS} of them"
            )
        if len(run) > _MOST_NUMBERS:
            raise CallError(
                f"{what} {text[:80]!r}: {part[:80]!r}; want at most {_MOST_NUMBERS} of "
                "them"
            )
        found += run
    return found


def group_of(text: str) -> list[int]:
    """Return the ranks of a machine in `0-3,8`."""
    found: list[int] = []
    for part, run in _parts(text, 0):
        if run is None:
            raise CallError(
                f"--group {text[:80]}: got {part[:80]!r}; want ranks such as 0-3,8"
            )
        found += run
    if twice := sorted({r for r in found if found.count(r) > 1}):
        raise CallError(f"--group {text[:80]}: names {twice[0]} twice; want it once")
    return found


def _parts(text: str, least: int) -> Iterator[tuple[str, range | None]]:
    """Yield the parts of `2,3,4-8`, and the numbers that each means, if it does."""
    for part in text.split(","):
        first, dash, last = part.partition("-")
        low, high = _number(first), _number(last if dash else first)
        if low is None or high is None or not least <= low <= high <= _MOST_RANKS:
            yield part, None
        else:
            yield part, range(low, high + 1)


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


def find_all(name: str) -> dict[str, Algorithm | Program | StrettoError]:
    """Return what a name means: of a file without a variable, all that is in it.

    What could not be made, an algorithm with a wrong name say, is there as its error.
    """
    path = Path(name)
    if path.suffix != ".py":
        found = find(name)
        return {found.name: found}
    if not path.is_file():
        raise CallError(f"no file {path}; want FILE.py or FILE.py:variable")
    ran = _run_file(path)
    every: dict[str, Algorithm | Program | StrettoError] = dict(ran.refused)
    seen: set[int] = set()
    for variable, value in _targets(ran).items():
        if id(value) not in seen:
            seen.add(id(value))
            every[variable] = value
    if not every:
        raise ProgramError(
            f"{path}: no algorithm in it, so nothing is proved; want a function under "
            f"@algorithm('all_reduce/mine')"
        )
    return every


def find_epilogue(name: str) -> Epilogue:
    """Return the epilogue `FILE.py:variable`, or the only one of a file."""
    head, colon, variable = name.rpartition(":")
    path = Path(head if colon and head.endswith(".py") else name)
    variable = variable if path.name != Path(name).name else ""
    if path.suffix != ".py" or not path.is_file():
        raise CallError(f"--epilogue {name}: no such file; want FILE.py:variable")
    here = {k: v for k, v in _run_file(path).names.items() if isinstance(v, Epilogue)}
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
        with contextlib.redirect_stdout(sys.stderr):  # what its author prints
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
    if not path.is_file():
        raise CallError(f"no file {path}; want MSCCL XML or an MSCCL++ plan")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as e:
        raise ParseError(f"{path}: {e}; want text in UTF-8") from None
    return foreign.from_xml(text) if path.suffix == ".xml" else foreign.from_plan(text)


def _from_python(path: Path, variable: str) -> Algorithm | Program:
    if not path.is_file():
        raise CallError(f"no file {path}; want FILE.py:variable")
    ran = _run_file(path)
    here = _targets(ran)
    if variable in ran.refused:
        raise ran.refused[variable]
    if not variable:
        if len(here) == 1 and not ran.refused:
            return next(iter(here.values()))
        if not here and ran.refused:
            raise next(iter(ran.refused.values()))
        raise CallError(
            f"{path} has {len(here)} algorithms; want {path}:NAME with NAME one of "
            f"{', '.join(sorted(here)) or 'those that @algorithm makes'}"
        )
    if variable not in here:
        raise CallError(
            f"{path}: no algorithm or program named {variable!r}; it has "
            f"{', '.join(sorted(here)) or 'none'}"
        )
    return here[variable]


@dataclass(frozen=True, slots=True)
class _Ran:
    """What a file names when it has run, and the functions it could not decorate."""

    names: dict[str, Any]
    refused: dict[str, StrettoError]


def _targets(ran: _Ran) -> dict[str, Algorithm | Program]:
    """Return the algorithms and programs of a file, by name."""
    return {
        name: value
        for name, value in ran.names.items()
        if isinstance(value, Algorithm | Program)
    }


def _run_file(path: Path) -> _Ran:
    """Run a file, statement by statement.

    A function that its decorator refuses does not keep the rest from being looked at,
    nor do the lines that would use it.
    """
    spec = importlib.util.spec_from_file_location(f"stretto_user_{path.stem}", path)
    assert spec is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    refused: dict[str, StrettoError] = {}
    try:
        pieces = _compile(path)
    except Exception as e:
        raise _ended(path, e) from None
    for name, code in pieces:
        try:
            with contextlib.redirect_stdout(sys.stderr):
                exec(code, vars(module))
        except StrettoError as e:
            if name.startswith("line "):
                raise e.at(_place(path, e)) from None
            refused[name] = e.at(_place(path, e))
        except NameError as e:
            if e.name not in refused:
                raise _ended(path, e) from None
            refused[name] = ProgramError(
                f"{e.name} was refused, so this was passed over"
            ).at(_place(path, e))
        except (Exception, SystemExit) as e:
            raise _ended(path, e) from None
    return _Ran(vars(module), refused)


def _compile(path: Path) -> list[tuple[str, CodeType]]:
    """Return a file's statements, each with what it names, else with its line."""
    text = path.read_bytes()
    tree = ast.parse(text, str(path))
    compile(text, str(path), "exec", dont_inherit=True)  # what only a whole file shows
    flags = 0
    pieces = []
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            for alias in statement.names:
                flags |= getattr(__future__, alias.name).compiler_flag
        name = _named_by(statement) or f"line {statement.lineno}"
        one = ast.Module([statement], [])
        code = compile(one, str(path), "exec", flags=flags, dont_inherit=True)
        pieces.append((name, code))
    return pieces


def _named_by(statement: ast.stmt) -> str:
    """Return what a decorated function or a plain assignment names."""
    if isinstance(statement, ast.FunctionDef) and statement.decorator_list:
        return statement.name
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else ""
    return ""


def _ended(path: Path, error: BaseException) -> ProgramError:
    """Return why a file did not run to its end."""
    place = _place(path, error)
    if isinstance(error, SystemExit):
        return ProgramError(
            f"the file ends with sys.exit({error.code!r}), so nothing is proved; want "
            f"a file that runs to its end (if __name__ == '__main__' before the exit)"
        ).at(place)
    what = f"{type(error).__name__}: {error}"
    return ProgramError(f"{what}; want a file that runs").at(place)


def _place(path: Path, error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.lineno:
        return f"{path}:{error.lineno}"
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if frame.f_code.co_filename == str(path):
            return f"{path}:{line}"
    return str(path)
