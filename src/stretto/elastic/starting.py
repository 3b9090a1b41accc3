"""How the processes of a job start: here, or on other hosts by ssh."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import partial

from stretto.fabric.jit.handlers import held_back
from stretto.fabric.process import die_with_parent
from stretto.runtime.calls import Elastic
from stretto.runtime.calls.options import ELASTIC

LOCAL = ""
"""The host that the launcher runs on."""
# What runs on another host: it keeps the secret in a file of its own, runs the program,
# and ends it when the connection ends.
_REMOTE = """\
read -r secret; exec 3<&0; umask 077; f=$(mktemp); printf %s "$secret" > "$f"; \
{exports}; export STRETTO_SECRET_FILE="$f"; cd {folder} 2>/dev/null; \
{words} < /dev/null & p=$!; \
(cat <&3 > /dev/null; kill $p 2> /dev/null) & w=$!; \
wait $p; r=$?; kill $w 2> /dev/null; rm -f "$f"; exit $r"""


def environment_of(
    hosts: Sequence[str], rank: int, address: str, elastic: Elastic | None = None
) -> dict[str, str]:
    """Return what a rank finds in its environment.

    Of a job whose ranks may change, the hub is in no rank.
    """
    host = hosts[rank]
    said = {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(hosts[:rank].count(host)),
        "LOCAL_WORLD_SIZE": str(hosts.count(host)),
        "STRETTO_ADDRESS": address,
    }
    if elastic is not None:
        said |= {"STRETTO_HOSTED": "1", ELASTIC: json.dumps(asdict(elastic))}
    return said


@dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Starts a program on hosts."""

    words: Sequence[str]
    ssh: str = "ssh -o BatchMode=yes"
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    keep: Sequence[str] = ("PATH", "PYTHONPATH")
    """Variables that other hosts get as they are here."""

    def start(self, host: str, variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start it on a host; its input, where it has one, ends it.

        It ends with this process, however that ends: an interrupt may come before
        anybody has noted what was started.
        """
        here, environment = host == LOCAL, {**os.environ, **variables}
        ssh = [] if here else [*shlex.split(self.ssh), host, self.script(variables)]
        with held_back():  # what is raised in a hook of a fork, Python drops
            started = subprocess.Popen(
                list(self.words) if here else ssh,
                env=environment if here else None,
                stdin=subprocess.DEVNULL if here else subprocess.PIPE,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        if here:
            return started
        assert started.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            started.stdin.write(f"{self.secret}\n".encode())
            started.stdin.flush()
        return started

    def script(self, variables: Mapping[str, str]) -> str:
        """Return what the shell of another host runs."""
        kept = {name: os.environ[name] for name in self.keep if name in os.environ}
        said = {**kept, **variables}
        exports = "; ".join(f"export {k}={shlex.quote(v)}" for k, v in said.items())
        folder = shlex.quote(os.getcwd())  # noqa: PTH109 - as the shell has it
        words = shlex.join(self.words)
        return _REMOTE.format(exports=exports, folder=folder, words=words)
