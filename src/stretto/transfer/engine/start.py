"""Begin transfers: find the plan and the way, and who does what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from stretto.errors import (
    CallError,
    TransferTimeout,
)
from stretto.transfer.copying.words import Mode
from stretto.transfer.copying.work import Work
from stretto.transfer.engine.leases import read_token
from stretto.transfer.links.link import notice
from stretto.transfer.links.words import MARKS
from stretto.transfer.memory.region import GPU, STORE, Region, View, addresses_of
from stretto.transfer.plans import Plan, Run, split
from stretto.transfer.ports import EngineLike, PeerLike
from stretto.transfer.ways.answer import works_here
from stretto.transfer.ways.asking import (
    chunk_pages,
    header_of,
    num_pieces,
    on_gpu_of,
    planned,
    receiving_of,
    sending_of,
    tokens_of,
    view_of,
)
from stretto.transfer.ways.paths import BY_GPU, Path, choose
from stretto.transfer.ways.quick import quick
from stretto.transfer.ways.staged import (
    INLINE,
    PART,
    can_go_straight,
    pack_request,
)
from stretto.transfer.ways.transfer import Prepared, Transfer

if TYPE_CHECKING:
    from stretto.transfer.ways.gpu import Enqueued, Gpu, GpuTransfer, Passing
    from stretto.transfer.ways.stored import Helpers

__all__ = ["Starter"]

_WORTH_ASKING = 128 << 10
"""Bytes from which a peer is asked where to put them, which takes a round trip."""
_AT_ONCE = 1 << 20
"""Bytes that are moved by who asks for it, before it is told of the transfer."""


class Starter:
    """What an engine does to begin a transfer, or to answer a peer that begins one."""

    def __init__(self, engine: EngineLike) -> None:
        self._engine = engine
        self._gpu: Gpu | None = None
        self._helpers: Helpers | None = None

    # Ours.

    def start(
        self, src: Any, dst: Any, *, notify: bytes = b"", lease: bytes = b"",
        deadline: float | None = None, checksum: bool = False, stream: Any = None,
        by: str = "",
    ) -> Transfer:  # fmt: skip
        """Begin a transfer; see `View.put`."""
        a, b = self._views(src, dst)
        if STORE in (a.region.kind, b.region.kind):
            if notify or lease or by:
                raise CallError("a store takes no notify=, lease= or by=")
            return self._stored(a, b, checksum, stream, deadline)
        peer, theirs, is_put = self._sides(a, b)
        made = planned(a, b)
        runs = made.runs(a.pages, b.pages, tokens_of(a, b))
        converts = a.layout.dtype != b.layout.dtype
        touched, on_gpu = converts or checksum, on_gpu_of(a, b)
        path = choose(peer, theirs, is_put=is_put, touched=touched, on_gpu=on_gpu)
        if checksum and converts:
            raise CallError("checksum=True of elements that are converted on their way")
        how: dict[str, Any] = {
            "nbytes": sum(r.nbytes for r in runs),
            "pieces": num_pieces(runs),
            "notify": notify,
            "deadline": deadline,
        }
        if notify:
            notice(notify)
        slot, epoch = read_token(lease) if lease else (-1, 0)
        if theirs is not None and slot < 0:
            slot, epoch = theirs.slot, theirs.epoch
        if path is BY_GPU:
            return self._on_gpu(
                a, b, made, runs, (slot, epoch), stream, by, checksum, **how
            )
        transfer = Transfer(self._engine.loop, peer, path.name, **how)
        transfer.chunk_pages = chunk_pages(a if is_put else b, runs)
        transfer.checked = checksum
        if deadline is not None:
            assert transfer.until is not None, "there is a deadline"
            self._engine.loop.at(transfer.until, lambda: _late(transfer))
        if path.mode is not None:
            self._direct(transfer, path, a, b, made, runs, (slot, epoch))
        else:
            assert peer is not None, "only a peer is reached by a stage"
            self._staged(
                transfer, a, b, made, runs, (slot, epoch), stream, is_put=is_put
            )
        return transfer

    def prepare(self, src: Any, dst: Any, **how: Any) -> Prepared | Enqueued | Passing:
        """Prepare a transfer that is done again and again."""
        a, b = self._views(src, dst)
        if STORE in (a.region.kind, b.region.kind):
            idle = Transfer(self._engine.loop, None, "store", nbytes=0, pieces=0)
            return Prepared(idle, None, lambda: self.start(a, b, **how))
        peer, theirs, is_put = self._sides(a, b)
        notify = how.get("notify", b"")
        record = np.frombuffer(notice(notify), np.int64).copy() if notify else None
        converts = a.layout.dtype != b.layout.dtype
        touched = converts or bool(how.get("checksum"))
        on_gpu = on_gpu_of(a, b)
        path = choose(peer, theirs, is_put=is_put, touched=touched, on_gpu=on_gpu)
        made = planned(a, b)
        runs = made.runs(a.pages, b.pages, tokens_of(a, b))
        if how.get("signal") is not None and path is not BY_GPU:
            raise CallError("signal= of memory that is not on a GPU; notify= is for it")
        if on_gpu and path is not BY_GPU:
            from stretto.transfer.ways.gpu import Passing

            def begin(stream: Any) -> Transfer:
                return self.start(a, b, stream=stream, **how)

            return Passing(begin, path.name)
        if path is BY_GPU:
            return self._enqueued(made, runs, a, b, how)
        idle = Transfer(
            self._engine.loop, peer, path.name, nbytes=sum(r.nbytes for r in runs),
            pieces=num_pieces(runs), notify=notify,
        )  # fmt: skip
        idle.checked = bool(how.get("checksum"))
        lease = how.get("lease", b"")
        if path.mode is not None:
            where = (theirs.slot, theirs.epoch) if theirs is not None else (-1, 0)
            where = read_token(lease) if lease else where
            self._works(idle, path, a, b, made, runs, where)
        elif peer is not None and theirs is not None and not idle.checked:
            where = read_token(lease) if lease else (theirs.slot, theirs.epoch)
            again = self._quick(peer, made, runs, a, b, where, is_put=is_put)
            if again is not None:
                idle.holds = (a, b)
                return Prepared(
                    idle, record, lambda: self.start(src, dst, **how), again
                )
        return Prepared(idle, record, lambda: self.start(src, dst, **how))

    def _enqueued(
        self, made: Plan, runs: Any, a: View, b: View, how: dict[str, Any]
    ) -> Enqueued:
        """Return what moves memory of GPUs whenever it is called with a stream."""
        from stretto.transfer.ways.gpu import Enqueued

        signal = how.get("signal")
        word = 0 if signal is None else self.gpu.word(signal)
        if word and not runs:
            raise CallError("signal= of a transfer that moves nothing")
        moves = [
            self.gpu.prepare(
                made, run, a, b, how.get("by", ""), word if run is runs[-1] else 0
            )
            for run in runs
        ]
        return Enqueued(moves, self.gpu.mover, (a, b))

    def _quick(
        self, peer: Any, made: Plan, runs: Any, a: View, b: View,
        where: tuple[int, int], *, is_put: bool,
    ) -> Any:  # fmt: skip
        """Return one compiled call that does a far transfer, or None."""
        ours = a if is_put else b
        mode = Mode.PACK if is_put else Mode.UNPACK
        works = [
            Work(made, run, ours.addresses, ours.addresses, mode=mode)
            for run in split(made, runs, PART)
        ]
        header = header_of(a, b, made, where, is_put=is_put)
        far = b.pages if is_put else a.pages
        pages = None if far is None else far.astype(np.int64)
        return quick(peer, works, header, pages, is_put=is_put)

    def _views(self, src: Any, dst: Any) -> tuple[View, View]:
        a, b = view_of(src), view_of(dst)
        if a is None and b is None:
            raise CallError("neither side of this transfer is shared by an engine")
        if a is None:
            assert b is not None, "one of them is a view"
            a = self._wrapped(src, b, written=False)
        if b is None:
            b = self._wrapped(dst, a, written=True)
        return a, b

    def _wrapped(self, given: Any, other: View, *, written: bool) -> View:
        """Return an array as a view, of the layout that the other side has."""
        layout, addresses, _, kind = addresses_of(
            given, str(other.layout.packed), "the array", written=written
        )
        region = Region(
            name="an array", layout=layout, kind=kind, addresses=tuple(addresses),
            engine=self._engine, holds=given,
        )  # fmt: skip
        return View(region=region, layout=layout)

    def _sides(self, a: View, b: View) -> tuple[PeerLike | None, Region | None, bool]:
        """Return the peer, its memory, and whether that is written."""
        from_, to = a.region.peer, b.region.peer
        if from_ is not None and to is not None:
            raise CallError(
                f"from engine {from_.name!r} to engine {to.name!r}: one of them has to "
                "move it; this engine moves to and from its own memory"
            )
        if b.region.read_only:
            raise CallError(f"{b.region.name!r} is shared to be read only")
        if to is not None:
            to.give_up()
            return to, b.region, True
        if from_ is not None:
            from_.give_up()
            return from_, a.region, False
        return None, None, True

    # By this process alone.

    def _direct(
        self, transfer: Transfer, path: Path, a: View, b: View, made: Plan,
        runs: tuple[Run, ...], where: tuple[int, int],
    ) -> None:  # fmt: skip
        self._works(transfer, path, a, b, made, runs, where)
        peer = transfer.peer
        if peer is not None:
            peer.begun.add(transfer)
            transfer.then(lambda: peer.begun.discard(transfer))
        if transfer.nbytes <= _AT_ONCE:
            transfer.move()
        else:
            self._engine.loop.move(transfer.move)

    def _works(
        self, transfer: Transfer, path: Path, a: View, b: View, made: Plan,
        runs: tuple[Run, ...], where: tuple[int, int],
    ) -> None:  # fmt: skip
        peer, mode = transfer.peer, path.mode
        assert mode is not None, "one side does it all"
        transfer.works = [
            Work(
                made, run, a.addresses, b.addresses, mode=mode,
                pid=0 if peer is None else peer.pid, cancel=transfer.word,
            )
            for run in runs
        ]  # fmt: skip
        transfer.holds = (a, b)
        if peer is None or peer.board is None:
            return
        mark = peer.take_mark()
        if mark is None:
            raise CallError(f"too many transfers with engine {peer.name!r} at once")
        transfer.then(lambda: peer.give_mark(mark))
        for work in transfer.works:
            at = peer.link.out + MARKS + 8 * mark
            work.guard(at, peer.board.address(where[0]), where[1])

    # By both.

    def _staged(
        self, transfer: Transfer, a: View, b: View, made: Plan, runs: tuple[Run, ...],
        where: tuple[int, int], stream: Any, *, is_put: bool,
    ) -> None:  # fmt: skip
        peer = transfer.peer
        assert peer is not None, "the other half of it"
        ours, theirs = (a, b) if is_put else (b, a)
        header = header_of(a, b, made, where, is_put=is_put)
        header["sum"] = transfer.checked
        if transfer.notify and is_put:
            header["notify"] = transfer.notify.hex()
        pages = None if theirs.pages is None else theirs.pages.astype(np.int64)
        mode = Mode.PACK if is_put else Mode.UNPACK
        ring = None
        if ours.region.kind == GPU:
            ring = self.gpu.ring(peer)
            ring.lane.follow(self.gpu.handle(stream))
        works = works_here(made, runs, ours.addresses, mode, ring)
        transfer.is_in_order = len(works) == len(runs) and not is_put
        number = peer.number()
        transfer.holds = (a, b)
        transfer.then(lambda: peer.drop(number))
        if not is_put:
            receiving = receiving_of(ring, peer, works, (a, b))
            opened = receiving.open()
            header["field"] = 0 if opened is None else opened.offset
            peer.begin(transfer, pack_request(header, pages), receiving, number)
            return
        header["direct"] = transfer.nbytes >= _WORTH_ASKING and can_go_straight(works)
        header["direct"] &= peer.link.fields is not None
        sending = sending_of(
            ring, peer, number, works, (a, b), checked=transfer.checked,
            is_direct=bool(header["direct"]),
        )  # fmt: skip
        data = b""
        if sum(work.packed_bytes for work in works) <= INLINE and not transfer.checked:
            header["inline"] = True
            data = sending.inline()
        peer.begin(transfer, pack_request(header, pages, data), sending, number)

    # Stores.

    def _stored(
        self, a: View, b: View, checked: bool, stream: Any, deadline: float | None
    ) -> Transfer:
        from stretto.transfer.ways.stored import Helpers, begin_stored

        if self._helpers is None:
            self._helpers = Helpers()
        on_gpu = GPU in (a.region.kind, b.region.kind)
        copier = self.gpu.copier(stream) if on_gpu else None
        transfer = begin_stored(
            self._engine.loop, self._helpers, a, b, checked=checked, copier=copier,
            deadline=deadline,
        )  # fmt: skip
        if transfer.until is not None:
            self._engine.loop.at(transfer.until, lambda: _late(transfer))
        transfer.begin()
        return transfer

    # GPUs.

    @property
    def has_gpu(self) -> bool:
        """Return whether the GPU is used."""
        return self._gpu is not None

    @property
    def gpu(self) -> Gpu:
        """Return the GPU of this process."""
        if self._gpu is None:
            from stretto.transfer.ways.gpu import Gpu  # who has none does not pay

            self._gpu = Gpu(self._engine)
        return self._gpu

    def close(self) -> None:
        """Give back what the GPU holds, and end the threads of stores."""
        if self._helpers is not None:
            self._helpers.close()
        if self._gpu is not None:
            self._gpu.close()

    def _on_gpu(
        self, a: View, b: View, made: Plan, runs: tuple[Run, ...],
        where: tuple[int, int], stream: Any, by: str, checked: bool, **how: Any,
    ) -> GpuTransfer:  # fmt: skip
        """Begin copies on a stream."""
        from stretto.transfer.ways.gpu import GpuTransfer

        peer = a.region.peer or b.region.peer
        handle = self.gpu.handle(stream)
        moves = [self.gpu.prepare(made, run, a, b, by) for run in runs]
        mark = None if peer is None or peer.board is None else peer.take_mark()

        def free() -> None:
            for move in moves:
                move.close()
            if mark is not None and peer is not None:
                peer.give_mark(mark)

        path = f"gpu, by {moves[0].by}" if moves else "gpu"
        transfer = GpuTransfer(
            self._engine.loop, peer, path, moves, handle, free, **how
        )
        transfer.chunk_pages = chunk_pages(a if a.region.peer is None else b, runs)
        transfer.holds = (a, b)
        if mark is not None and peer is not None:
            transfer.guard(peer, mark, *where)
        if not moves:
            transfer.complete()
            return transfer
        if checked:
            transfer.is_same = self.gpu.comparing(made, runs, a, b)
        transfer.enqueue()
        if transfer.notify or transfer.until is not None:
            self._engine.loop.move(transfer.settle)
        return transfer


def _late(transfer: Transfer) -> None:
    if not transfer.done():
        transfer.stop(TransferTimeout, "not done before its deadline")
        with transfer.turn:  # what is under way sees that, and lets go
            return
