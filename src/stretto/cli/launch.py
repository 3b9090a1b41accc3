"""Start a program on several hosts by ssh, for those without a launcher.

    stretto launch --hosts nodea:4,nodeb:4 -- python train.py

Every rank gets the environment that torchrun gives, an address, and a secret made for
this job, which travels on the standard input of ssh. When a rank fails, or this command
ends, the others are ended too.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from stretto.errors import CallError

__all__ = ["add_arguments", "command_of", "parse_hosts", "run"]

_LOW, _HIGH = 29_000, 32_000
_PATIENCE_S = 5.0
# What runs on a host: it keeps the secret in a file of its own, runs the program, and
# ends it when the connection ends.
_REMOTE = """\
read -r secret; exec 3<&0; umask 077; f=$(mktemp); printf %s "$secret" > "$f"; \
{exports}; export STRETTO_SECRET_FILE="$f"; cd {folder} 2>/dev/null; \
{words} < /dev/null & p=$!; \
(cat <&3 > /dev/null; kill $p 2> /dev/null) & w=$!; \
wait $p; r=$?; kill $w 2> /dev/null; rm -f "$f"; exit $r"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add = parser.add_argument
    add("--hosts", required=True, metavar="A[:N],B[:N]", help="N ranks on each [1]")
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


def command_of(
    hosts: Sequence[str],
    rank: int,
    address: str,
    words: Sequence[str],
    keep: Sequence[str],
) -> str:
    """Return what the shell of a rank's host runs."""
    host = hosts[rank]
    variables = {name: os.environ[name] for name in keep if name in os.environ}
    variables |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(hosts[:rank].count(host)),
        "LOCAL_WORLD_SIZE": str(hosts.count(host)),
        "STRETTO_ADDRESS": f"tcp://{address}",
    }
    exports = "; ".join(f"export {k}={shlex.quote(v)}" for k, v in variables.items())
    folder = shlex.quote(os.getcwd())  # noqa: PTH109 - as the shell has it
    return _REMOTE.format(exports=exports, folder=folder, words=shlex.join(words))


def run(args: argparse.Namespace) -> int:
    """Start all ranks, and wait for them; return the first status that is not 0."""
    hosts = parse_hosts(args.hosts)
    words = args.program[1:] if args.program[:1] == ["--"] else args.program
    if not words:
        raise CallError("nothing to run; want: stretto launch --hosts a,b -- PROGRAM")
    address = args.address or _address(hosts)
    secret = secrets.token_hex(32)
    keep = [name for name in args.env.split(",") if name]
    started: list[subprocess.Popen[str]] = []
    try:
        for rank, host in enumerate(hosts):
            script = command_of(hosts, rank, address, words, keep)
            ssh = [*shlex.split(args.ssh), host, script]
            one = subprocess.Popen(ssh, stdin=subprocess.PIPE, text=True)
            started.append(one)
            assert one.stdin is not None, "it is a pipe"
            with suppress(BrokenPipeError):
                one.stdin.write(secret + "\n")
                one.stdin.flush()
        return _wait(started, hosts)
    finally:
        _end(started)


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


def _wait(started: Sequence[subprocess.Popen[str]], hosts: Sequence[str]) -> int:
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


def _end(started: Sequence[subprocess.Popen[str]]) -> None:
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
