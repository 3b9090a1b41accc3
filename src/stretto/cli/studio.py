"""See a run: links, traffic, lateness, programs, on a page of this machine."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import threading
from pathlib import Path

from stretto import topology
from stretto.cli.fastest import fastest
from stretto.cli.targets import add_params, build, find, params_of, ranks_of
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify
from stretto.errors import CallError, StrettoError
from stretto.program.collectives import dtype_name
from stretto.program.ir import Program
from stretto.program.lang import Algorithm
from stretto.runtime.choice import parse_sizes
from stretto.studio import NamedInputs, Studio, StudioServer, exported, follow, opened
from stretto.studio.ask import by_command

_FEW_RANKS = 16
"""Up to so many, several schedules are simulated to choose among them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add = parser.add_argument
    add(
        "recordings",
        nargs="*",
        metavar="RECORDING",
        help="a file or folder of `stretto trace`; a second one is compared with it",
    )
    add("--program", metavar="ALGORITHM", help="beside its plan and kernel; simulated")
    add_params(parser)
    add("--ranks", type=ranks_of, help="of the program [all of the machine, or 4]")
    add("--machine", default="", help="of `stretto list` [what a recording says]")
    add("--size", default="1M", help="of the simulated call [1M]")
    add("--schedule", default="", metavar="WORDS", help="[the fastest of a few]")
    add("--dtype", default="float32", help="of the kernel [float32]")
    add(
        "--tune",
        action="append",
        default=[],
        metavar="FILE",
        help="what `stretto tune --report` wrote; may be repeated",
    )
    add(
        "--search",
        action="append",
        default=[],
        metavar="RUN",
        help="a run of `stretto search --db`, also while it grows; may be repeated",
    )
    add("--export", metavar="FILE", help="write all of it as one HTML file instead")
    add("--port", type=int, default=0, help="[a free one]")
    add("--no-open", action="store_true", help="print the address, open no browser")
    add(
        "--translator",
        metavar="COMMAND",
        help="writes questions in the grammar from other words [none]",
    )


def run(args: argparse.Namespace) -> int:
    """Serve the page until interrupted, or write it as one file."""
    given = _given(args)
    translator = by_command(shlex.split(args.translator)) if args.translator else None
    studio = Studio(given, translator=translator)
    if args.export:
        studio.refresh()
        if studio.index()["state"] == "failed":
            raise CallError(studio.index()["failed"])
        path = Path(args.export)
        path.write_text(exported(studio), encoding="utf-8")
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB, opens in any browser")
        return 0
    return _serve(studio, args.port, opens=not args.no_open)


def _given(args: argparse.Namespace) -> NamedInputs:
    if not (args.recordings or args.program or args.tune or args.search):
        want = "want a RECORDING, --program, --tune or --search"
        raise CallError(f"nothing to show; {want}")
    if not 0 <= args.port < 1 << 16:
        raise CallError(f"--port {args.port}; want a number below 65536")
    Schedule.parse(args.schedule)
    program, machine, source = None, args.machine, ""
    nbytes = parse_sizes(args.size)[0]
    if args.program:
        found = find(args.program)
        if isinstance(found, Algorithm):
            known = topology.load(machine).num_ranks if machine else 4
            program = build(found, args.ranks or known, params_of(args))
        else:
            program = build(found, args.ranks or found.num_ranks, params_of(args))
        source = program.source.rpartition(":")[0]
        if not machine and not args.recordings:
            machine = f"h200x{program.num_ranks}"
    schedule = args.schedule
    if program is not None and not schedule:
        schedule = _schedule(program, machine, nbytes)
    return NamedInputs(
        recordings=tuple(map(Path, args.recordings)),
        program=program,
        source=source,
        machine=machine,
        nbytes=nbytes,
        schedule=schedule,
        dtype=dtype_name(args.dtype),
        reports=tuple(map(Path, args.tune)),
        searches=tuple(map(Path, args.search)),
    )


def _schedule(program: Program, machine: str, nbytes: int) -> str:
    """Return the schedule that the simulator finds fastest, of a few."""
    if not machine or program.num_ranks > _FEW_RANKS:
        return ""
    try:
        found = fastest(verify(program), topology.load(machine), nbytes, 4)
    except StrettoError:
        return ""  # the page says why there is no plan
    return str(found[0].value.schedule)


def _serve(studio: Studio, port: int, *, opens: bool) -> int:
    """Load aside, serve at once: a page that is early says what it waits for."""
    server = StudioServer(studio, port)
    loader = threading.Thread(
        target=follow, args=(studio, server.is_over), daemon=True, name="loader"
    )
    loader.start()
    print(server.address, flush=True)
    try:
        with opened(server.address) if opens else contextlib.nullcontext():
            server.serve_forever()
    finally:
        server.is_over.set()
        server.server_close()
    return 0
