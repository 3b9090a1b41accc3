"""Compile the GPU kernels of usual calls into the cache, before anybody calls."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable

from stretto.cli.output import add_json, print_rows
from stretto.errors import CallError
from stretto.runtime.calls.precompile import compile_usual

_NICE = 2
"""Beside a model that is being made: whoever waits for a kernel compiles it again."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--ranks", type=int, default=2, help="of one host (2)")
    parser.add_argument("--arch", help='such as "9.0"; without it, this machine\'s')
    parser.add_argument("--workers", type=int, help="that compile")
    parser.add_argument(
        "--torch", action="store_true", help="the C++ part of torch's groups, too"
    )
    parser.add_argument(
        "--parent", type=int, default=0, help="a process to end with, and to let go on"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Compile, and say how much that was; needs no GPU when told its architecture."""
    if args.ranks < 1 or (args.workers is not None and args.workers < 1):
        raise CallError(
            f"precompile: --ranks {args.ranks}, --workers {args.workers}; want 1 or "
            f"more of each"
        )
    if args.parent:
        # so that a compiler that it has started ends with it
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        with contextlib.suppress(OSError):
            os.nice(_NICE)

    def go_on() -> bool:
        return not args.parent or os.getppid() == args.parent

    began = time.monotonic()
    group = _build(go_on) if args.torch else {}
    made = compile_usual(
        args.ranks, _arch(args.arch), workers=args.workers, go_on=go_on
    )
    took = round(time.monotonic() - began, 1)
    words = "all" if made.is_whole else "cut short"
    row = {"kernels": made.kernels, "seconds": took, "done": words}
    print_rows(args, [{**row, **group}])
    return 0


def _build(go_on: Callable[[], bool]) -> dict[str, str]:
    """Compile the C++ part of torch's groups; return what is said of it."""
    try:
        from stretto.torch import native
    except ImportError as e:
        return {"torch": str(e)}
    return {"torch": native.build(go_on) or "there"}


def _arch(text: str | None) -> tuple[int, int] | None:
    """Return an architecture as numbers."""
    if text is None:
        return None
    found = re.fullmatch(r"(?:sm_)?(\d+)[._]?(\d)", text)
    if not found:
        raise CallError(f'precompile: --arch {text}; want one such as "9.0"')
    return int(found[1]), int(found[2])
