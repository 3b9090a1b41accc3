"""The `stretto` command: one file a verb, found by scanning this folder."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from stretto._version import __version__
from stretto.cli.options import CommandParser, bounded, described
from stretto.errors import (
    CommunicationError,
    ParseError,
    ProgramError,
    RankFailed,
    StrettoError,
)
from stretto.registry import Registry

__all__ = ["CommandParser", "bounded", "commands", "described", "main", "parser"]

_DONE, _FAILED, _MISUSED = 0, 1, 2
_files: Registry[ModuleType] = Registry("command", __name__)


def commands() -> dict[str, ModuleType]:
    """Return the modules of this folder that are commands, by name."""
    every = {name: _files.get(name) for name in _files.names()}
    return {n: one for n, one in every.items() if hasattr(one, "add_arguments")}


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = CommandParser(
        prog="stretto",
        description="Collective communication: write, prove, simulate, run.",
    )
    top.add_argument("--version", action="version", version=f"stretto {__version__}")
    verbs = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, module in commands().items():
        summary = (module.__doc__ or "").split("\n", 1)[0]
        verb = verbs.add_parser(name, help=summary, description=summary)
        module.add_arguments(verb)
        verb.set_defaults(run=module.run, parser=verb)
    bounded(top)
    described(top)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, 1 when something is wrong, 2 when misused."""
    _open_streams()
    args, unknown = parser().parse_known_args(argv)
    if unknown:
        args.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    try:
        status: int = args.run(args)
    except StrettoError as e:
        sys.stderr.write(f"stretto {args.command}: {e}\n")
        return _status(e)
    except OSError as e:
        if isinstance(e, BrokenPipeError):  # the reader has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return _DONE
        said = f"{e.filename}: {e.strerror}" if e.filename and e.strerror else e
        sys.stderr.write(f"stretto {args.command}: {said}\n")
        return _MISUSED
    except KeyboardInterrupt:
        return 130
    except RecursionError:
        sys.stderr.write(f"stretto {args.command}: what was given nests too deeply\n")
        return _MISUSED
    except Exception as e:  # 1 would say that something was judged
        if os.environ.get("STRETTO_TRACEBACK"):
            raise
        what = " ".join(str(e).split())[:200]
        sys.stderr.write(
            f"stretto {args.command}: cannot be done: {type(e).__name__}: {what} "
            "(STRETTO_TRACEBACK=1 shows where)\n"
        )
        return _MISUSED
    return status


def _open_streams() -> None:
    """Give a process that was started without standard streams such as say nothing.

    Else the next file that it opens would take their place, and what it says.
    """
    while (held := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(held, True)  # processes that it starts have them, too
    os.close(held)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            empty = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115
            setattr(sys, name, empty)


def _status(error: StrettoError) -> int:
    """Return 1 for what was judged and found wrong, 2 for what cannot be judged."""
    if isinstance(error, ParseError):
        return _MISUSED
    judged = isinstance(error, ProgramError | CommunicationError | RankFailed)
    return _FAILED if judged else _MISUSED
