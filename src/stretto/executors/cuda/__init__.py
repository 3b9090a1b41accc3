"""Run plans on GPUs: one kernel compiled for each, or copy engines."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stretto.compiler.plan import ProvedPlan
from stretto.errors import DeviceError, MissingExtraError, StrettoError
from stretto.executors import Call, Group
from stretto.executors.cuda.limits import lacks
from stretto.fabric import hop
from stretto.program.elements import Operator
from stretto.program.epilogues import Spec

if TYPE_CHECKING:
    from stretto.executors.cuda.codegen.abi import Kernel
    from stretto.executors.cuda.launching.side_stream import SideStream
    from stretto.executors.cuda.mixed import Mixer
    from stretto.executors.cuda.parts import Adder
    from stretto.executors.cuda.session import CudaSession
    from stretto.executors.cuda.transfers.mover import Boxes, GpuMover

__all__ = [
    "adder",
    "arch_here",
    "between_hosts",
    "boxes",
    "doctor",
    "gpus",
    "include_path",
    "lacks",
    "load",
    "mixer",
    "mover",
    "open_session",
    "show",
    "side_stream",
    "stands_on",
    "stream_here",
    "toolchain",
    "trusted",
    "unavailable",
    "warm",
]


def unavailable(group: Group) -> StrettoError | None:
    """Return why a rank cannot open a session, alike on all (collective).

    Nobody has opened anything then, so that the group goes on without GPUs.
    """
    why: StrettoError | None = None
    try:
        from stretto.executors.cuda.device.driver import ask

        if not ask("cuDeviceGetCount"):
            why = DeviceError("no CUDA device is visible; see stretto doctor")
    except (DeviceError, MissingExtraError) as e:
        why = e
    mine = {"unavailable": str(why or ""), "extra": isinstance(why, MissingExtraError)}
    for rank, (theirs, _) in enumerate(group.exchange(mine)):
        if theirs["unavailable"]:
            kind = MissingExtraError if theirs["extra"] else DeviceError
            return kind(f"rank {rank}: {theirs['unavailable']}")
    return None


def open_session(group: Group) -> CudaSession:
    """Open a session for a group (collective), where nothing is `unavailable`."""
    from stretto.executors.cuda.session import CudaSession

    return CudaSession(group)


def stands_on() -> str:
    """Return the GPU that this process's sessions use, which no other rank may.

    It is not touched. Where nobody says which it is, it is that of the place to come.
    """
    from stretto.executors.cuda.device.driver import chosen_uuid
    from stretto.executors.cuda.device.memory import may_share
    from stretto.executors.cuda.device.space import told_local_rank

    return "" if may_share() else chosen_uuid(told_local_rank())


def load(*, far: bool = False) -> None:
    """Load what sessions are made of; a GPU is not touched."""
    del far  # the same
    importlib.import_module("stretto.executors.cuda.session")


def stream_here(stream: Any = None) -> int:
    """Return the handle of a stream; without one, of what the caller works on."""
    from stretto.executors.cuda.device.driver import current_stream, here, stream_handle

    device = here()
    return current_stream(device) if stream is None else stream_handle(stream)


def side_stream() -> SideStream:
    """Return a stream for calls that are started, beside the callers' streams."""
    from stretto.executors.cuda.device.driver import here, open_device
    from stretto.executors.cuda.launching.side_stream import SideStream

    return SideStream(open_device(here()))


def mover() -> GpuMover:
    """Return this process's GPU as transfers use it."""
    from stretto.executors.cuda.transfers.mover import GpuMover

    return GpuMover()


def adder() -> Adder:
    """Return what adds parts in the memory of the GPU that the caller works on."""
    from stretto.executors.cuda.device.driver import here

    return _adder(here())


@functools.cache
def _adder(device: int) -> Adder:
    from stretto.executors.cuda.parts import Adder

    return Adder(device)


def mixer() -> Mixer:
    """Return what adds up and quantises on the GPU that the caller works on."""
    from stretto.executors.cuda.device.driver import here

    return _mixer(here())


@functools.cache
def _mixer(device: int) -> Mixer:
    from stretto.executors.cuda.mixed import Mixer

    return Mixer(device)


def boxes(**what: Any) -> Boxes:
    """Return what a mover moves: see `transfers.mover.Boxes`."""
    from stretto.executors.cuda.transfers.mover import Boxes

    return Boxes(**what)


def doctor() -> Mapping[str, str]:
    """Return what this machine has and what is missing, by subject."""
    from stretto.executors.cuda.checkup import examine

    return examine()


def gpus() -> list[str]:
    """Return the names of the GPUs that are visible, without using one."""
    from stretto.executors.cuda.checkup import names

    return names()


def include_path() -> str:
    """Return the folder of headers for kernels of your own."""
    return str(Path(__file__).parent / "kernels")


def show(
    plan: ProvedPlan,
    *,
    dtype: str,
    op: Operator,
    rank: int = 0,
    epilogue: Spec | None = None,
    rows: int = 1 << 30,
) -> str:
    """Return the text of one rank's kernel; with an epilogue, of parts of so many rows.

    Where there are fewer rows than blocks, blocks share them.
    """
    if epilogue is None:
        return _kernel(plan, dtype, op, rank).text
    from stretto.executors.cuda.codegen.generate import kernel_of
    from stretto.executors.cuda.codegen.rowwise import shared_by

    share = shared_by(epilogue, plan.value.schedule.blocks, rows)
    return kernel_of(
        plan, rank=rank, dtype=dtype, op=op, epilogue=epilogue, share=share
    ).text


def _kernel(plan: ProvedPlan, dtype: str, op: Operator, rank: int) -> Kernel:
    """Return the kernel of a plan: the registered one where there is one."""
    from stretto.executors.cuda.codegen.byhand import hand_kernel
    from stretto.executors.cuda.codegen.generate import kernel_of
    from stretto.executors.cuda.launching.byhand import taken_by_hand

    own = taken_by_hand(plan.value, Call(dtype=dtype, op=op, counts=(1,)))
    if own is not None:
        return hand_kernel(own, plan.value, rank=rank, dtype=dtype, op=op)
    return kernel_of(plan, rank=rank, dtype=dtype, op=op)


def trusted(plan: ProvedPlan, call: Call) -> str:
    """Return, in a word, what of such a call stands on less than a proof."""
    from stretto.executors.cuda.launching.byhand import taken_by_hand

    if call.epilogue is not None:
        return "epilogue"
    if any(call.rows):
        return "rows with a pitch"
    return "kernel by hand" if taken_by_hand(plan.value, call) is not None else ""


def arch_here() -> tuple[int, int]:
    """Return the architecture of this process's first GPU, without using it."""
    from stretto.executors.cuda.device.driver import arch_of

    return arch_of(0)


def toolchain() -> str:
    """Return what all kernels depend on beside their texts: headers and compiler."""
    from stretto.executors.cuda.codegen.compile import identity

    return identity()


def between_hosts() -> str:
    """Return how data go from one host to another, in words."""
    carrier = hop.get(hop.chosen())
    how = "GPUDirect" if carrier.device_memory else "no GPUDirect"
    return f"between hosts by {carrier.name}, staged in pinned memory ({how})"


def warm(
    plan: ProvedPlan, call: Call, *, rank: int, arch: tuple[int, int]
) -> dict[str, Callable[[], object]]:
    """Return what compiles one rank's kernels of a plain call into the cache, by name.

    May be called in any thread: nothing is loaded, and the GPU is not asked.
    """
    from stretto.executors.cuda.codegen.compile import compile_kernel
    from stretto.executors.cuda.flags.regions import regions
    from stretto.executors.cuda.launching.plain import plain_kernels

    region = regions(plan.value.num_ranks).sets[0]
    return {
        kernel.digest: functools.partial(compile_kernel, kernel, arch=arch)
        for kernel in plain_kernels(plan, call, rank=rank, region=region)
    }
