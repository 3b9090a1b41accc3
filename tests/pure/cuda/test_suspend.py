"""GPU memory given back and taken again, over a driver made of host memory."""

from __future__ import annotations

import pytest
from cuda_fakes import on_ranks, view

from stretto.errors import CallError
from stretto.executors.cuda import session as session_module
from stretto.executors.cuda.session import CudaSession
from stretto.executors.cuda.words import CONTROL

LARGE = 80 << 20
SLAB = str(64 << 20)


def mapped(fake, session):
    """Return the bytes that a rank has mapped, of its own and of its peers."""
    ranges = [(base, base + session.slab.nbytes) for base in session.slab.peers]
    with fake.lock:
        found = [(s, n) for s, n, _ in fake.maps if any(a <= s < b for a, b in ranges)]
    return sum(n for _, n in found)


def test_only_control_memory_stays_mapped_and_arrays_come_back(fake):
    """At the same addresses, in a slab that has grown; staging is zero, as at first."""

    def work(group):
        session = CudaSession(group)
        small, large = session.empty((10,), "uint8"), session.empty((LARGE,), "uint8")
        view(small)[:], view(large)[-10:] = group.rank + 1, group.rank + 2
        region, base, n = session.regions[0], session.slab.base, group.num_ranks
        control = base + region.control + CONTROL["launches"]
        view_at(control)[:], view_at(base + region.stage)[:] = 7, 9
        before = mapped(fake, session), session.memory()
        group.exchange({})
        session.suspend()
        group.exchange({})
        between = mapped(fake, session), session.memory(), view_at(control).tolist()
        group.exchange({})
        session.resume()
        after = mapped(fake, session), session.memory()
        group.exchange({})
        theirs = [session.space.peer_address(q, session.offset(large)) for q in (0, 1)]
        seen = [view_at(at + LARGE - 8)[0] for at in theirs]
        staged = view_at(base + region.stage).tolist()
        arrays = view(small).tolist(), view(large)[-11:].tolist()
        group.exchange({})
        session.close()
        assert before == after
        assert between[0] == n * session.slab.kept < 20 << 20
        assert between[1] == {
            "control": session.slab.kept,
            "saved on the host": 512 + LARGE,
        }
        assert between[2] == [7] * 8
        assert before[1]["registered"] > LARGE
        return seen, staged, arrays

    for rank, (seen, staged, arrays) in enumerate(on_ranks(fake, 2, work)):
        assert seen == [2, 3]
        assert staged == [0] * 8
        assert arrays == ([rank + 1] * 10, [0] + [rank + 2] * 10)


def view_at(address):
    """Return eight bytes there."""
    from stretto.fabric.memory import bytes_at

    return bytes_at(address, 8)


def test_where_a_rank_finds_no_memory_nobody_takes_any(fake):
    """All say who, hold nothing, and try again; what was saved is there then."""
    create = fake.cuMemCreate
    refusing = [True]

    def refuse(nbytes, properties, flags):
        if fake.who.rank == 1 and refusing[0] and nbytes > 4 << 20:
            return fake.CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        return create(nbytes, properties, flags)

    def work(group):
        session = CudaSession(group)
        mine = session.empty((LARGE,), "uint8")
        view(mine)[:3] = group.rank + 4
        group.exchange({})
        fake.cuMemCreate = refuse
        session.suspend()
        group.exchange({})
        with pytest.raises(CallError) as error:
            session.resume()
        held = mapped(fake, session) // session.slab.kept
        group.exchange({})
        refusing[0] = False
        session.resume()
        group.exchange({})
        found = view(mine)[:4].tolist()
        group.exchange({})
        session.close()
        return str(error.value), held, found

    for rank, (text, held, found) in enumerate(on_ranks(fake, 3, work)):
        assert text.startswith("resume: rank 1: ")
        assert "88 MB of GPU memory" in text
        assert "CUDA_ERROR_OUT_OF_MEMORY" in text
        assert text.endswith("; it is suspended still: free some")
        assert held == 3
        assert found == [rank + 4] * 3 + [0]


def test_what_cannot_be_given_back_says_why(fake, monkeypatch):
    """Memory of legacy IPC; and while a graph is being captured."""
    monkeypatch.setenv("STRETTO_CUDA_SLAB_BYTES", SLAB)

    is_captured = [False]
    monkeypatch.setattr(session_module, "capturing", lambda _: is_captured[0])

    def work(group):
        session = CudaSession(group)
        said = [session.keeps()]
        group.exchange({})
        is_captured[0] = True
        said.append(session.keeps())
        group.exchange({})
        is_captured[0] = False
        session.close()
        return said

    graph = "a graph is being captured"
    assert [["", graph]] * 2 == on_ranks(fake, 2, work)
    fake.vmm = False
    ipc = "GPU memory that is shared by legacy IPC stays where it is"
    assert [ipc] * 2 == on_ranks(fake, 2, lambda g: CudaSession(g).keeps())
