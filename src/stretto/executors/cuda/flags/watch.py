"""Who is missing: the kernels' error record, read by calls and by a thread.

A kernel that waits past its deadline writes one record into host memory, raises its
rank's `broken` word, and leaves; so does everybody who waits for it. The next call
raises what the record says. When only graphs are replayed there is no next call, so a
thread reads the record too. It also works the other way: when the group loses a rank,
the thread raises `broken`, and no kernel waits for its deadline in vain.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from stretto.compiler.plan import Plan, Wait, spell_step
from stretto.errors import CommunicatorBroken, DeviceError, StrettoError
from stretto.executors import Group, who_started
from stretto.executors.cuda.device.driver import Device, Pinned, api, ask
from stretto.executors.cuda.flags.testimony import Testimony
from stretto.executors.cuda.words import AWAITED, KINDS, RECORD

PERIOD_S = 0.02
TELLER_S = 1.0
"""How long the rank that gave up first may take to tell why; its thread reads too."""
MOST_PLANS = 1 << 14
"""Plans that records are told in the words of; each pair of arrays may have one."""
COMPLETE = 2
_LEAVE = RECORD.fields["leave"][1] // 8  # type: ignore[index]
"""The word of the record that the host writes."""
_AT_ONCE = 1
"""CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER: nothing was written before."""
WHY = {
    "mismatch": "as ranks called different things",
    "counts": "as there are more elements than it has room for",
}
"""Why a rank gave up that told us so, where nobody was missing."""
ENDED = "This communicator has ended: connect anew"


class SessionWatch:
    """The record of one session and the thread that reads it."""

    def __init__(
        self,
        device: Device,
        group: Group,
        broken_words: Sequence[int],
        testimony: Testimony,
    ) -> None:
        self._device = device
        self._group = group
        self._broken_words = tuple(broken_words)
        self._testimony = testimony
        self._pinned = Pinned(-(-RECORD.itemsize // 8))
        self.record = self._pinned.device_pointer
        self.state = self._pinned.words.data.cast("B").cast("I")
        self.fault: Exception | None = None
        self.inside = [0]
        """1 while a thread launches: parameters that it holds must stay as they are."""
        self._plans: dict[int, Plan] = {}
        self._calls: dict[int, str] = {}
        """What launches are, in words, by fingerprint."""
        self._places: dict[int, tuple[int, Sequence[int | None]]] = {}
        """Which call a launch on registered memory is, and where that begins."""
        self._released = False
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._entered = False
        nonblocking = int(api().CUstream_flags.CU_STREAM_NON_BLOCKING)
        self._stream = ask("cuStreamCreate", nonblocking)
        self._thread = threading.Thread(
            target=self._run, name=f"stretto-watch-{group.rank}", daemon=True
        )
        self._thread.start()

    def know(
        self,
        fingerprint: int,
        plan: Plan,
        of: int = 0,
        at: Sequence[int | None] = (),
    ) -> None:
        """Remember a plan, so that a record of it can be told in its words.

        `of` is the fingerprint of the call, which is made on arrays that lie `at`.
        """
        if fingerprint not in self._plans and len(self._plans) >= MOST_PLANS:
            oldest = next(iter(self._plans))  # the one known for longest
            del self._plans[oldest]
            self._places.pop(oldest, None)
        self._plans[fingerprint] = plan
        if of:
            self._places[fingerprint] = of, at

    def name(self, fingerprint: int, call: str) -> None:
        """Remember what a call is, in words, for ranks that called something else."""
        if fingerprint not in self._calls and len(self._calls) >= MOST_PLANS:
            del self._calls[next(iter(self._calls))]
        self._calls[fingerprint] = call

    def check(self) -> None:
        """Raise the fault, once there is one."""
        fault = self.look()
        if fault is not None:
            raise fault

    def fail(self, error: Exception) -> None:
        """Break this session by what another thread of it met; everybody leaves."""
        with self._lock:
            self.fault = self.fault or error
        self.release()

    def look(self) -> Exception | None:
        """Return the fault, reading the record."""
        if self.fault is None and self.state[0] == COMPLETE:
            with self._lock:
                if self.fault is None:
                    self.fault = self._read()
        return self.fault

    def close(self) -> None:
        """Stop the thread and free the record."""
        self._stop.set()
        self._thread.join(timeout=5)
        self.fault = self.fault or CommunicatorBroken(  # before its memory goes
            f"rank {self._group.rank}: this call was prepared for ranks that there are "
            "no more, or its communicator is closed: make it anew"
        )
        ask("cuStreamDestroy", self._stream)
        self._pinned.close()

    def _read(self) -> Exception:
        record = np.frombuffer(self._pinned.words.tobytes(), RECORD, count=1)[0]
        waiting, text = explain(record, self._plans)
        kind = KINDS[int(record["kind"])]
        differ = _cause(record) if kind == "told" else kind
        if kind == "told":
            self._tell(int(record["fingerprint"]))
            self._hear()
        if differ == "counts":
            return self._group.fail((), "", refused=text)
        mark, absent = int(record["fingerprint"]), _ranks(record["absent"])
        if differ == "mismatch":
            said = ""
            if kind == "mismatch":
                said = self._compare(mark, _ranks(record["differ"]), absent)
            return self._group.fail(waiting, text, mismatch=said or text)
        if kind == "timeout":  # they may be in a call whose flags lie elsewhere
            said = self._compare(mark, waiting, are_known=False)
            return self._group.fail(waiting, text, mismatch=said)
        return self._group.fail(waiting, text)

    def _tell(self, fingerprint: int) -> None:
        """Tell peers what we called, who find too that it was something else."""
        with contextlib.suppress(DeviceError), self._aside():
            self._testimony.give(self.called(fingerprint), self._stream)

    def _compare(
        self,
        fingerprint: int,
        differ: Sequence[int],
        absent: Sequence[int] = (),
        *,
        are_known: bool = True,
    ) -> str:
        """Return what every rank called, who differ from us; "" if nobody says.

        Or if nobody says that it differs, where that is not known.
        """
        self._tell(fingerprint)
        whom = [q for q in differ if q < self._group.num_ranks]
        heard: dict[int, str] = {}
        with contextlib.suppress(DeviceError), self._aside():
            heard = self._testimony.hear(whom, self._stream)
        mine = self.called(fingerprint)
        if not are_known:
            heard = {rank: text for rank, text in heard.items() if text != mine}
            whom = list(heard)
        if not heard:
            return ""
        said = []
        for rank in range(self._group.num_ranks):
            if rank in absent:
                said.append(f"rank {rank} has not come")
            elif rank in whom:
                said.append(f"rank {rank} called {heard.get(rank, 'something else')}")
            else:
                said.append(f"rank {rank} called {mine}")
        others = {q: heard.get(q, mine) for q in range(self._group.num_ranks)}
        why = who_started({q: w for q, w in others.items() if q not in absent})
        return "; ".join([*said, why] if why else said)

    def called(self, fingerprint: int) -> str:
        """Return what a launch is, in words."""
        of, at = self._places.get(fingerprint, (fingerprint, ()))
        no_name = f"a call that left no name (fingerprint {fingerprint:#x})"
        where = " and ".join("nowhere" if a is None else f"{a:#x}" for a in at)
        memory = f" in registered memory at {where}" if where else ""
        return self._calls.get(of, no_name) + memory

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Hold while this thread, which may capture a graph, copies beside that."""
        self._device.require_context()
        relaxed = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = ask("cuThreadExchangeStreamCaptureMode", relaxed)
        try:
            yield
        finally:
            ask("cuThreadExchangeStreamCaptureMode", before)

    def _hear(self) -> None:
        """Wait a little for the rank that gave up first: it knows why, we do not."""
        stop_at = time.monotonic() + TELLER_S
        while not int(self._group.broken[0]) and time.monotonic() < stop_at:
            time.sleep(PERIOD_S / 10)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_S):
            try:
                self._enter()
                self._tick()
            except Exception as e:  # nobody else would look: calls must hear of it
                if self.fault is None:
                    said = str(e) if isinstance(e, StrettoError) else repr(e)
                    where = f"rank {self._group.rank}, looking after its GPU: {said}"
                    self.fail(self._group.fail((), where))

    def _enter(self) -> None:
        """Make this thread the session's; captures elsewhere are not its business."""
        if not self._entered:
            self._device.enter()
            relaxed = api().CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            ask("cuThreadExchangeStreamCaptureMode", relaxed)
            self._entered = True

    def _tick(self) -> None:
        """Look once."""
        ended = self.fault is not None or self.look() is not None or self._notice()
        if ended and not self._released:
            self.release()

    def _notice(self) -> bool:
        """Return whether the group broke elsewhere."""
        found = None
        if int(self._group.broken[0]):
            found = self._group.fail((), f"rank {self._group.rank}: the GPU was in use")
        with self._lock:
            self.fault = self.fault or found
        return self.fault is not None

    def release(self) -> None:
        """Let every kernel of ours that waits leave now.

        The word in host memory comes first: a driver that is full of launches takes
        nothing more before they end.
        """
        self._released = True
        self._pinned.words[_LEAVE] = 1
        self._break_device()

    def _break_device(self) -> None:
        try:
            for address in self._broken_words:
                ask("cuStreamWriteValue32", self._stream, address, 1, _AT_ONCE)
            ask("cuStreamSynchronize", self._stream)
        except DeviceError as e:
            self.fault = self.fault or e


def explain(record: Any, plans: dict[int, Plan]) -> tuple[list[int], str]:
    """Return whom a record misses, and what it says in words."""
    kind = KINDS[int(record["kind"])]
    rank, peer, step = int(record["rank"]), int(record["peer"]), int(record["step"])
    absent, differ = _ranks(record["absent"]), _ranks(record["differ"])
    waiting = absent or differ or ([peer] if peer >= 0 else [])
    plan = plans.get(int(record["fingerprint"]))
    where = f"rank {rank}"
    if plan is not None:
        where += f", {plan.name}"
    awaited = list(AWAITED.values())[int(record["channel"])]
    if awaited:
        where += f", channel to rank {peer}, step {step}"
    else:
        where += f", {_step(plan, rank, int(record['lane']), _missed(plan, record))}"
    place = f"block {int(record['block'])}, epoch {int(record['epoch'])}"
    if kind == "mismatch":
        other = plans.get(int(record["got"]) & 0xFFFFFFFF)
        named = f" ({other.name})" if other is not None else ""
        return waiting, (
            f"{where}: ranks {differ} called something else{named}; want the same "
            "collective, counts, dtype, operator, algorithm and memory on every rank"
        )
    if kind == "counts":
        return [], _counts(plan, record)
    if kind == "told":
        why = f"missing ranks {absent}" if absent else WHY.get(_cause(record), "")
        return waiting, f"{where}: rank {peer} gave up{', ' * bool(why)}{why}"
    if absent:
        return waiting, f"{where}: ranks {absent} did not enter the call ({place})"
    return waiting, (
        f"{where}: waited for {awaited or f'rank {peer}'} ({place}): "
        f"got {int(record['got']):#x}, want {int(record['want']):#x}"
    )


def _cause(record: Any) -> str:
    """Return the kind of what the rank that told us has met."""
    kind = int(record["got"]) >> 48 & 0xFF
    return KINDS[kind] if kind < len(KINDS) else "timeout"


def _counts(plan: Plan | None, record: Any) -> str:
    """Return which count on the GPU is too large, in the same words on every rank."""
    which, rank = int(record["step"]), int(record["peer"])
    chosen = list(AWAITED).index("A_CHOICE")
    got, want = (
        int(np.uint64(record[name]).astype(np.int64)) for name in ("got", "want")
    )
    if int(record["channel"]) == chosen:
        return (
            f"rank {rank}: dispatch: choice {which} is {got}; want experts 0 to "
            f"{want - 1}, or -1 for none. {ENDED}"
        )
    call = "" if plan is None else f"{plan.name}: "
    if which < 0:
        array, what = ("x", "gives") if which == -1 else ("out", "is given")
        return (
            f"{call}rank {rank} {what} {got} elements, by counts on the GPU, and its "
            f"{array} has {want}; want a larger {array}, or smaller counts. It moved "
            f"nothing; what other ranks' outputs hold is undefined. {ENDED}"
        )
    scattered = plan is not None and plan.collective == "reduce_scatter"
    verb, receiver = "is to get" if scattered else "has", ""
    if plan is not None and plan.collective == "all_to_all":
        receiver = f" for rank {which % plan.num_ranks}"
    return (
        f"{call}rank {rank} {verb} {got} elements{receiver}, by its counts on the GPU; "
        f"want 0 to {want}, the max_count of the call; nothing was moved. {ENDED}"
    )


def _missed(plan: Plan | None, record: Any) -> int:
    """Return the step that a record is about.

    Waits at once are one call of the kernel, under the number of the first.
    """
    index, rank, lane = (int(record[name]) for name in ("step", "rank", "lane"))
    steps = plan.ranks[rank][lane] if plan and lane < len(plan.ranks[rank]) else ()
    if not (0 <= index < len(steps) and isinstance(steps[index], Wait)):
        return index
    sought = int(record["peer"]), int(record["want"]) & 0xFFFFF
    found = [
        i
        for i, step in enumerate(steps)
        if isinstance(step, Wait) and (step.rank, step.n) == sought
    ]
    return found[0] if found else index


def _step(plan: Plan | None, rank: int, lane: int, index: int) -> str:
    if index < 0:
        return "entering"
    if plan is None:
        return f"step {index}"
    lanes = plan.ranks[rank]
    if lane >= len(lanes) or index >= len(lanes[lane]):
        return f"step {index}"
    step = lanes[lane][index]
    author = plan.users_place(step)
    return f"step {index} ({spell_step(rank, step)}{', ' + author if author else ''})"


def _ranks(bits: Any) -> list[int]:
    return [q for q in range(32) if int(bits) >> q & 1]
