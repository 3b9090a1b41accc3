"""Record a command's communication, report on it, or look at one that hangs."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from stretto import topology, watch
from stretto._version import __version__
from stretto.caches import private
from stretto.cli.options import CommandParser
from stretto.cli.output import print_json, table
from stretto.errors import CallError, StrettoError
from stretto.trace import MONOTONIC, CallKind, Recording, Run, read_all, write

_EXAMPLES = """\
  stretto trace -- torchrun --nproc-per-node 8 train.py    record; write stretto.trace
  stretto trace --steps --perfetto run.pftrace -- CMD...   the steps inside calls, too
  stretto trace report stretto.trace                       tables
  stretto trace report FILE --perfetto run.pftrace         for ui.perfetto.dev
  stretto trace attach PID                                 who waits for whom, and why
"""
_FILE = "stretto.trace"
_VERBS = ("report", "attach")
_PATIENCE_S = 15.0


def add_arguments(parser: CommandParser) -> None:
    """Add this command's options, and those of what is no command to record."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    report = parser.action("report", "Print what a recording says, or write it anew.")
    report.add_argument(
        "what", metavar="FILE", nargs=1,
        help="a recording: a file, a folder, or Inspector's lines",
    )  # fmt: skip
    report.set_defaults(verb="report", steps=False)
    report.add_argument("--out", "-o", type=Path, help="write it there, as one file")
    _add_exports(report)
    report.add_argument(
        "--machine", default="", help="whose model to compare with [the recording's]"
    )
    report.add_argument("--json", action="store_true", help="one JSON document")
    attach = parser.action("attach", "Say who waits for whom in a job, and why.")
    attach.add_argument("what", metavar="PID", nargs=1, help="a process of the job")
    attach.set_defaults(verb="attach")
    attach.add_argument("--out", "-o", type=Path, help="write what was seen there")
    attach.add_argument("--json", action="store_true", help="one JSON document")
    parser.set_defaults(verb="")
    parser.add_argument(
        "what",
        nargs="*",
        metavar="-- COMMAND... | report FILE | attach PID",
        help="a command to record; a recording (a file, a folder, or Inspector's "
        "lines); a process that hangs",
    )
    parser.add_argument("--out", "-o", type=Path, help=f"the recording [{_FILE}]")
    parser.add_argument("--steps", action="store_true", help="record steps, too")
    _add_exports(parser)
    parser.add_argument(
        "--machine", default="", help="whose model to compare with [the recording's]"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document")


def _add_exports(parser: argparse.ArgumentParser) -> None:
    for name, about in (
        ("perfetto", "write events for ui.perfetto.dev"),
        ("inspector", "write calls as lines of NCCL's Inspector"),
        ("prometheus", "write metrics for Prometheus"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=about)


def run(args: argparse.Namespace) -> int:
    """Do what was asked for."""
    given = [args.verb, *args.what] if args.verb else list(args.what)
    match given:
        case ["report", file]:
            return _report(args, _read(Path(file)))
        case ["attach", pid] if pid.isdigit():
            return _attach(args, int(pid))
        case [verb, *_] if verb in _VERBS and shutil.which(verb) is None:
            want = "FILE" if verb == "report" else "PID"
            raise CallError(f"{' '.join(given)}: want `stretto trace {verb} {want}`")
        case []:
            raise CallError(f"nothing to record; want one of:\n{_EXAMPLES.rstrip()}")
    if shutil.which(given[0]) is None:
        near = difflib.get_close_matches(given[0], _VERBS, 1)
        meant = f"; did you mean {near[0]}?" if near else "; want a command to run"
        raise CallError(f"{given[0]}: there is no such program{meant}")
    return _record(args, given)


# Record.


def _record(args: argparse.Namespace, command: Sequence[str]) -> int:
    """Run a command whose processes record, and join what they wrote."""
    out = args.out or Path(_FILE)
    with _kept(tempfile.mkdtemp(prefix=".stretto-trace-", dir=_near(out))) as folder:
        environment = {**os.environ, "STRETTO_TRACE": str(folder)}
        if args.steps:
            environment["STRETTO_TRACE_STEPS"] = "1"
        status = _run(command, environment)
        if not any(folder.iterdir()):
            sys.stderr.write(
                f"stretto trace: {command[0]} ended with {status} and no process of "
                "its called stretto\n"
            )
            return status
        recording = read_all(folder)
    recording = replace(
        recording,
        run=Run(
            title=" ".join(command)[:200],
            command=tuple(command),
            machine=recording.run.machine or args.machine or _machine(recording),
            version=__version__,
        ),
    )
    write(out, recording)
    _export(args, recording)
    summary = watch.summarise(recording)
    lines = (*watch.head(recording, summary), *watch.said(recording, summary))
    for line in lines:
        sys.stderr.write(f"{line}\n")
    sys.stderr.write(f"written to {out}; see it: stretto trace report {out}\n")
    return status


def _near(out: Path) -> Path:
    """Return a folder beside the recording: launchers of other hosts may share it."""
    folder = out.absolute().parent
    if not folder.is_dir():
        raise CallError(f"--out {out}: there is no folder {folder}")
    return folder


@contextlib.contextmanager
def _kept(name: str) -> Iterator[Path]:
    """Use a folder; what cannot be joined stays there, and is said."""
    folder = Path(name)
    try:
        yield folder
    except BaseException:
        sys.stderr.write(f"stretto trace: what was recorded is in {folder}\n")
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _run(command: Sequence[str], environment: dict[str, str]) -> int:
    """Run it to its end, also when it is interrupted: then it ends by itself.

    A scheduler's SIGTERM is handed on; what has not ended 15 s later is killed.
    """
    try:
        child = subprocess.Popen(command, env=environment)
    except OSError as e:
        raise CallError(f"{command[0]}: {e.strerror}; want a command to run") from None
    before = signal.signal(signal.SIGTERM, _terminated)
    patience: float | None = None
    try:
        while True:
            try:
                status = child.wait(patience)
                return 128 - status if status < 0 else status
            except KeyboardInterrupt:
                with contextlib.suppress(KeyboardInterrupt, _Terminated):
                    child.send_signal(signal.SIGINT)
            except _Terminated:
                child.terminate()
                patience = _PATIENCE_S
            except subprocess.TimeoutExpired:
                child.kill()
    finally:
        signal.signal(signal.SIGTERM, before)


class _Terminated(BaseException):
    """SIGTERM has come."""


def _terminated(signum: int, frame: object) -> None:
    raise _Terminated


def _machine(recording: Recording) -> str:
    """Return the name of the machine here, if it is one that has a file."""
    try:
        found = topology.detect().name
        topology.load(found)
    except (StrettoError, OSError):
        return ""
    return found if len(recording.hosts) == 1 else ""


# Report.


def _read(path: Path) -> Recording:
    """Return a recording: of ours, or of NCCL Inspector's lines."""
    if path.is_file():
        with path.open("rb") as file:
            if file.read(1) == b"{":
                return watch.read_inspector(path)
    if (
        path.is_dir()
        and not any(path.glob("*.trace"))
        and not any(path.glob("*.rings"))
    ):
        return watch.read_inspector(path)
    return read_all(path)


def _report(args: argparse.Namespace, recording: Recording) -> int:
    model = _model(args.machine or recording.run.machine)
    summary = watch.summarise(recording, model=model)
    wrote = _export(args, recording)
    if args.out is not None:
        write(args.out, recording)
    if args.json:
        found = [asdict(one) for one in watch.verdict(recording, summary)]
        document = {"verdict": found} | asdict(summary) | {"run": asdict(recording.run)}
        print_json({"command": "trace", **document})
        return 0
    for line in (*watch.head(recording, summary), *watch.said(recording, summary)):
        print(line)
    for title, rows in watch.rows_of(summary).items():
        print(f"\n{title}")
        print(table(rows))
    for path in wrote:
        print(f"written: {path}")
    return 0


def _export(args: argparse.Namespace, recording: Recording) -> list[Path]:
    """Write what other tools read, where that was asked for."""
    wrote = []
    if args.perfetto:
        left = watch.write_perfetto(args.perfetto, recording)
        if left:
            sys.stderr.write(f"{args.perfetto}: the first {left} events are left out\n")
        wrote.append(args.perfetto)
    if args.inspector:
        with private(args.inspector) as file:
            lines = watch.inspector_lines(recording)
            file.writelines(f"{line}\n".encode() for line in lines)
        wrote.append(args.inspector)
    if args.prometheus:
        metrics = watch.prometheus_lines(recording, watch.summarise(recording))
        with args.prometheus.open("w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in metrics)
        wrote.append(args.prometheus)
    return wrote


def _model(name: str) -> watch.Model | None:
    """Return what the simulator says of a kind of calls on a machine."""
    if not name:
        return None
    machine = topology.load(name)

    def model(kind: CallKind, num_ranks: int) -> float:
        from stretto.cli.fastest import fastest
        from stretto.cli.targets import build, find
        from stretto.compiler.verify import verify

        simple = (
            kind.algorithm and kind.schedule and "," not in kind.text.split(" by ")[0]
        )
        if not simple or num_ranks > machine.num_ranks or not kind.nbytes:
            return 0.0
        try:
            program = verify(build(find(kind.algorithm), num_ranks, {}))
            _, found = fastest(program, machine, kind.nbytes, 1, kind.schedule)
        except StrettoError:
            return 0.0
        return float(found.time_us)

    return model


# Attach.


def _attach(args: argparse.Namespace, pid: int) -> int:
    """Print what is wrong; 1 when something is."""
    recording = watch.attached(pid)
    found = watch.diagnose(recording, round(MONOTONIC.now_us() * 1e3))
    if args.out is not None:
        write(args.out, recording)
    if args.json:
        print_json({"command": "trace", **found.document()})
    else:
        print(watch.page(found, recording))
    return 1 if found.findings else 0
