"""Compile the GPU kernels of usual calls into the cache, before anybody calls."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import time

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
        with contextlib.suppress(OSError):
            os.nice(_NICE)

    def go_on() -> bool:
        return not args.parent or os.getppid() == args.parent

    began = time.monotonic()
    made = compile_usual(
        args.ranks, _arch(args.arch), workers=args.workers, go_on=go_on
    )
    took = round(time.monotonic() - began, 1)
    words = "all" if made.is_whole else "cut short"
    print_rows(args, [{"kernels": made.kernels, "seconds": took, "done": words}])
    return 0


def _arch(text: str | None) -> tuple[int, int] | None:
    """Return an architecture as numbers."""
    if text is None:
        return None
    found = re.fullmatch(r"(?:sm_)?(\d+)[._]?(\d)", text)
    if not found:
        raise CallError(f'precompile: --arch {text}; want one such as "9.0"')
    return int(found[1]), int(found[2])
