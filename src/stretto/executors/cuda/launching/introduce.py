"""Tell the watch and the recordings what a launch is: they speak of it in words."""

from __future__ import annotations

from stretto.compiler.plan import Plan
from stretto.executors import Call
from stretto.executors.cuda.launching.launch import Launch
from stretto.executors.cuda.launching.services import SessionServices


def introduce(
    session: SessionServices,
    launch: Launch,
    noted: tuple[int, Plan, Call] | None = None,
) -> None:
    """Tell of each part of a launch by its name.

    Recordings note its calls as `noted` says: by a fingerprint, as a plan's call.
    """
    for part in launch.parts:
        session.watch.know(part.name.fingerprint, part.plan)
        session.watch.name(*part.name)
    if noted is not None:
        session.recorded.notes(launch, *noted)
    for kernel in launch.kernels:
        session.recorded.know(*kernel.name, kernel.plan, kernel.where)
