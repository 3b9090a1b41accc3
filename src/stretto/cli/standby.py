"""Stand by for a job: run its program until it is a rank.

    stretto standby --join tcp://HOST:PORT -- python train.py

It takes what the program is to find in its environment from who launched the job.
"""

from __future__ import annotations

import argparse
import os
import subprocess

from stretto.cli.launch import program_of
from stretto.elastic import look
from stretto.errors import CallError
from stretto.fabric.meeting.watching import watching


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add = parser.add_argument
    add("--join", metavar="ADDRESS", help="[STRETTO_ADDRESS, or the only job here]")
    add("program", nargs=argparse.REMAINDER, metavar="-- PROGRAM", help="what to run")


def run(args: argparse.Namespace) -> int:
    """Run the program with what the job says of its environment; return its status."""
    words = program_of(args)
    with watching(args.join) as meeting:
        said = look(meeting).says.get("environment")
    if not isinstance(said, dict):
        raise CallError(
            "nobody who launched this job says how its program is to be started; "
            "start it yourself, with STRETTO_STANDBY=1"
        )
    mine = {"LOCAL_RANK"} & {*os.environ}  # the device to use: who starts it knows
    variables = {str(k): str(v) for k, v in said.items() if k not in mine}
    if args.join is not None:
        variables["STRETTO_ADDRESS"] = args.join
    full = {**os.environ, **variables, "STRETTO_STANDBY": "1"}
    status = subprocess.run(words, env=full, check=False).returncode
    return status if status >= 0 else 128 - status
