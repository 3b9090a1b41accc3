"""Start a program here, or on several hosts by ssh, for those without a launcher.

    stretto launch --hosts nodea:4,nodeb:4 -- python train.py
    stretto launch --ranks 4 --standby 1 --min 2 -- python train.py

Every rank gets the environment that torchrun gives, an address, and a secret made for
this job, which travels on the standard input of ssh. When a rank fails, or this command
ends, the others are ended too. With `--standby` or `--min` the job goes on instead,
with one that stands by in the lost rank's place, or with fewer ranks.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from stretto.elastic import JobOptions, run_job
from stretto.elastic.starting import LOCAL, Starter, environment_of
from stretto.errors import CallError
from stretto.runtime.calls import Elastic

_LOW, _HIGH = 29_000, 32_000
_PATIENCE_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add = parser.add_argument
    add("--hosts", metavar="A[:N],B[:N]", help="N ranks on each [1]; else this one")
    add("--ranks", type=int, metavar="N", help="how many, on this host")
    add("--standby", type=int, default=0, metavar="N", help="how many stand by [0]")
    add("--min", type=int, default=0, metavar="N", help="go on with so few [all]")
    add(
        "--max",
        type=int,
        default=0,
        metavar="N",
        help="grow to so many at most [no limit]",
    )
    add("--machine", default="", help="what ranks sit on, of `stretto list` [any]")
    add("--spare", metavar="A[:N]", help="hosts of those who stand by [the last]")
    add("--job", metavar="NAME", help="what it is found by [drawn by lot]")
    add("--ssh", default="ssh -o BatchMode=yes", help="[ssh -o BatchMode=yes]")
    add("--address", metavar="HOST:PORT", help="[of the first host, any port]")
    add("--env", default="PATH,PYTHONPATH", help="variables to pass [PATH,PYTHONPATH]")
    add("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="what to run")


def parse_hosts(text: str) -> list[str]:
    """Return the host of each rank.

    >>> parse_hosts("a:2,b")
    ['a', 'a', 'b']
    """
    found: list[str] = []
    for word in text.split(","):
        name, _, many = word.strip().partition(":")
        if not name or name.startswith("-") or (many and not many.isdigit()):
            raise CallError(f"--hosts {text!r}: want names such as nodea:4,nodeb:4")
        found += [name] * int(many or 1)
    if not found:
        raise CallError(f"--hosts {text!r}: no rank runs anywhere")
    return found


def program_of(args: argparse.Namespace) -> list[str]:
    """Return the words of the program, which stand behind `--`."""
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        raise CallError(f"nothing to run; want: stretto {args.command} ... -- PROGRAM")
    return list(words)


def run(args: argparse.Namespace) -> int:
    """Start all ranks, and wait for them; return the first status that is not 0."""
    words = program_of(args)
    for number in (signal.SIGTERM, signal.SIGHUP):  # what it started ends, too
        signal.signal(number, _end_in_order)
    if args.ranks is not None or any((args.standby, args.min, args.max, args.machine)):
        return run_job(_wanted(args, words))
    if args.hosts is None:
        raise CallError(
            "launch what, where? want --ranks 4, or --hosts nodea:4,nodeb:4"
        )
    hosts = parse_hosts(args.hosts)
    address = args.address or _address(hosts)
    starter = _starter(args, words)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for rank, host in enumerate(hosts):
            variables = environment_of(hosts, rank, f"tcp://{address}")
            started.append(starter.start(host, variables))
        return _wait(started, hosts)
    finally:
        _end(started)


def _end_in_order(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _starter(args: argparse.Namespace, words: Sequence[str]) -> Starter:
    keep = [name for name in args.env.split(",") if name]
    return Starter(words=words, ssh=args.ssh, keep=keep)


def _wanted(args: argparse.Namespace, words: Sequence[str]) -> JobOptions:
    """Return a job that goes on, as the options say it."""
    if args.ranks == 0:
        raise CallError("--ranks 0: at least one rank is needed")
    here = [LOCAL] * (args.ranks or 1)
    hosts = here if args.hosts is None else parse_hosts(args.hosts)
    if args.ranks is not None and len(hosts) != args.ranks:
        raise CallError(
            f"--ranks {args.ranks} on --hosts {args.hosts}: these have {len(hosts)}"
        )
    spare = hosts[-1:] if args.spare is None else parse_hosts(args.spare)
    standbys = [spare[i % len(spare)] for i in range(args.standby)]
    elastic = Elastic(
        min_ranks=args.min,
        max_ranks=args.max,
        standby=args.standby,
        machine=args.machine,
    )
    if args.min > len(hosts):
        raise CallError(f"--min {args.min} of {len(hosts)} ranks: want no more")
    if args.hosts is None:
        address = args.job or f"launched-{secrets.token_hex(6)}"
    else:
        address = f"tcp://{args.address or _address(hosts)}"
    return JobOptions(
        hosts=hosts,
        standbys=standbys,
        elastic=elastic,
        starter=_starter(args, words),
        address=address,
    )


def _address(hosts: Sequence[str]) -> str:
    """Return where rank 0 serves: its host's address, and a port that may be free."""
    try:
        family, _, _, _, where = socket.getaddrinfo(
            hosts[0], 1, type=socket.SOCK_STREAM
        )[0]
    except OSError as e:
        raise CallError(
            f"--hosts: {hosts[0]} has no address here ({e}); give --address HOST:PORT"
        ) from None
    found = str(where[0])
    if len(set(hosts)) > 1 and (found.startswith("127.") or found == "::1"):
        raise CallError(
            f"--hosts: {hosts[0]} resolves to {found}, which other hosts do not reach; "
            "give --address HOST:PORT"
        )
    port = random.SystemRandom().randrange(_LOW, _HIGH)
    return f"[{found}]:{port}" if family == socket.AF_INET6 else f"{found}:{port}"


def _wait(started: Sequence[subprocess.Popen[bytes]], hosts: Sequence[str]) -> int:
    """Return 0 when all have ended well, else the status of the first that did not."""
    running = dict(enumerate(started))
    while running:
        for rank, one in list(running.items()):
            status = one.poll()
            if status is None:
                continue
            del running[rank]
            if status:
                sys.stderr.write(
                    f"stretto launch: rank {rank} on {hosts[rank]} ended with status "
                    f"{status}\n"
                )
                until = time.monotonic() + _PATIENCE_S  # the others hear of it
                while time.monotonic() < until and any(
                    other.poll() is None for other in running.values()
                ):
                    time.sleep(0.05)
                return status if status > 0 else 1
        time.sleep(0.02)
    return 0


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what still runs: closing its input ends a rank, wherever it is."""
    for one in started:
        with suppress(OSError):
            assert one.stdin is not None, "it is a pipe"
            one.stdin.close()
    until = time.monotonic() + _PATIENCE_S
    for one in started:
        try:
            one.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()
