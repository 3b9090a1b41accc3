"""Ranks that come late, never, twice, again, or to the wrong job; groups; the door."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

from tests.chaos.jobs import Found, Job, outcome, spell
from tests.chaos.talk import ALL, talk
from tests.chaos.team import Me, Told, gives_back, held, tell_of

import stretto
from stretto.errors import StrettoError


def late_ranks(rng: random.Random, folder: Path) -> Found:
    """Ranks come in any order, seconds apart: all goes well."""
    job = Job(rng, folder, rng.randint(2, 5))
    turns = rng.randint(1, 6)
    members = [
        job.start(r, turns=turns, late_s=rng.random() ** 2 * 1.5)
        for r in range(job.ranks)
    ]
    job.team.until_over()
    job.check_right(members, "late ranks")
    return job.end()


def never_comes(rng: random.Random, folder: Path) -> Found:
    """One never comes: the others hear who it is, at their deadline."""
    job = Job(rng, folder, rng.randint(2, 5))
    bad, deadline_s = rng.randrange(job.ranks), rng.uniform(0.5, 1.2)
    begin = time.monotonic()
    members = [
        job.start(r, deadline_s=deadline_s) for r in range(job.ranks) if r != bad
    ]
    job.team.until_over()
    for member in members:
        said = outcome(member)
        if said.error != "CollectiveTimeout" or said.blamed != (bad,):
            job.fault(f"misnamed: {member.name} {spell(member)}; {bad} never came")
        if said.at_s - begin > deadline_s + 4:
            job.fault(f"late: {said.at_s - begin:.1f} s, deadline {deadline_s:.1f} s")
    job.may_leave |= {".fault"}
    return job.end()


def be_again(
    me: Me, *, rank: int, ranks: int, address: str, seed: str, first: int, last: int
) -> Told:
    """Meet in round after round: each but the last ends by the loss of somebody."""
    before, words = held(), []
    for nth in range(first, last + 1):
        comm = stretto.connect(rank, ranks, address, deadline_s=15.0)
        me.say(nth)
        try:
            for turn in range(4 if nth == last else 1 << 40):
                talk(comm, f"{seed}:{nth}", turn, ALL)
        except StrettoError as e:
            if nth == last:
                raise
            words.append(tell_of(e))
        finally:
            comm.close()
            del comm
    gives_back(before)
    return Told(value="done", blamed=tuple(b for w in words for b in w.blamed))


def meet_again(rng: random.Random, folder: Path) -> Found:
    """Ranks are killed and started anew under one name; survivors connect anew."""
    job = Job(rng, folder, rng.randint(2, 4))
    rounds = rng.randint(1, 3)
    common = {"ranks": job.ranks, "address": job.address, "seed": job.seed}

    def start(rank: int, first: int) -> Any:
        work = partial(be_again, rank=rank, first=first, last=rounds, **common)
        return job.team.start(work, f"rank{rank}-from-{first}")

    members = [start(r, 0) for r in range(job.ranks)]
    firsts = [0] * job.ranks
    lost: list[list[int]] = [[] for _ in members]
    for nth in range(rounds):
        for rank, member in enumerate(members):
            job.team.until_said(member, nth - firsts[rank] + 1)
        job.team.watch(rng.random() * 0.05)
        bad = rng.randrange(job.ranks)
        members[bad].kill()
        if rng.random() < 0.5:
            job.team.watch(rng.random() * 0.3)
        members[bad], firsts[bad], lost[bad] = start(bad, nth + 1), nth + 1, []
        for rank in set(range(job.ranks)) - {bad}:
            lost[rank].append(bad)
    job.team.until_over()
    job.check_right(members, f"{rounds} rounds")
    for rank, member in enumerate(members):
        if outcome(member).value == "done" and outcome(member).blamed != (*lost[rank],):
            job.fault(f"misnamed: rank {rank} {outcome(member)}; want {lost[rank]}")
    job.may_leave |= {".sock", ".fault"}
    return job.end()


def wrong_rank(rng: random.Random, folder: Path) -> Found:
    """Somebody comes twice, or with another number of ranks: errors, and no hang."""
    job = Job(rng, folder, rng.randint(2, 4))
    how = rng.choice(("twice", "another number", "beyond"))
    members = job.start_all(turns=3, deadline_s=1.5)
    options: dict[str, Any] = {
        "deadline_s": 1.5,
        "turns": 3,
        "late_s": rng.random() / 9,
    }
    if how == "another number":
        options["ranks"] = job.ranks + 1
    rank = rng.randrange(1, job.ranks) if how != "beyond" else job.ranks + 2
    odd = job.start(rank, **options)
    job.team.until_over()
    if how == "beyond" and outcome(odd).error != "LaunchEnvironmentError":
        job.fault(f"a rank beyond the last {spell(odd)}")
    done = [m for m in members if outcome(m).value == "done"]
    if how == "beyond" and len(done) < job.ranks:
        job.check_right(members, how)
    if how == "twice":  # one of both is in, and the job goes on
        done += [odd] if outcome(odd).value == "done" else []
        if len(done) < job.ranks:
            job.fault(f"twice: {[spell(m) for m in (*members, odd)]}")
    job.may_leave |= {".sock", ".fault"}
    return job.end()


def different_calls(rng: random.Random, folder: Path) -> Found:
    """One calls something else: all hear that, with the same words."""
    import numpy as np

    job = Job(rng, folder, rng.randint(2, 4))
    bad, when = rng.randrange(job.ranks), rng.randint(0, 5)
    how = rng.choice(("count", "dtype", "op", "verb", "split", "empty"))

    def hook(comm: Any, turn: int) -> None:
        if turn != when:
            return
        x = np.ones(64, np.float32)
        if comm.rank != bad:
            comm.all_reduce(x)
        elif how == "count":
            comm.all_reduce(np.ones(65, np.float32))
        elif how == "dtype":
            comm.all_reduce(np.ones(64, np.int32))
        elif how == "op":
            comm.all_reduce(x, "max")
        elif how == "verb":
            comm.all_to_all(np.ones(64 * comm.num_ranks, np.float32))
        elif how == "split":
            comm.split(0)
        else:
            comm.empty(10)

    members = job.start_all(hook=hook, verbs=ALL, deadline_s=6.0)
    job.team.until_over()
    for member in members:
        if outcome(member).error != "CollectiveMismatch":
            job.fault(f"different {how} by {bad}: {member.name} {spell(member)}")
    return job.end()


def ask_for_memory(comm: Any) -> tuple[int, ...]:
    """Return who is blamed when memory is asked for without a rendezvous."""
    begin = time.monotonic()
    try:
        comm.empty(4)
    except StrettoError as e:
        assert time.monotonic() < begin + 2, "it took long"
        return e.blamed
    return ()


def nested_groups(rng: random.Random, folder: Path) -> Found:
    """Groups of groups; one rank dies: whose groups have it break, others go on."""
    job = Job(rng, folder, rng.randint(3, 5))
    bad, seed = rng.randrange(job.ranks), job.seed
    colors = [rng.randrange(2) for _ in range(job.ranks)]

    def work(me: Me, rank: int) -> Any:
        before = held()
        world = stretto.connect(rank, job.ranks, job.address, deadline_s=15.0)
        outer = world.split(0, -rank)
        inner = outer.split(colors[rank])
        for turn in range(3):
            talk(inner, f"{seed}{colors[rank]}", turn)
            talk(outer, f"{seed}o", turn)
        me.say("in")
        heard = []
        is_hit = colors[rank] == colors[bad]
        if not is_hit:
            me.hear()
            for turn in range(6):  # what was known before needs no rendezvous
                talk(inner, f"{seed}after", turn, ALL if bad == 0 else ())
            heard.append("went on")
            if bad == 0:
                heard.append(ask_for_memory(inner))
        for comm in (inner, outer, world)[0 if is_hit else 1 :]:
            turn = 0
            try:
                while True:
                    talk(comm, f"{seed}last", turn, ALL)
                    turn += 1
            except StrettoError as e:
                heard.append(e.blamed)
        for comm in (inner, outer, world):
            comm.close()
        del comm, inner, outer, world
        gives_back(before)
        return heard

    members = [
        job.team.start(partial(work, rank=r), f"rank{r}") for r in range(job.ranks)
    ]
    job.until_in(members)
    members[bad].kill()
    job.team.watch(0.05)
    for rank, member in enumerate(members):
        if colors[rank] != colors[bad]:
            job.team.tell(member, "go")
    job.team.until_over()
    for rank, member in enumerate(members):
        same = colors[rank] == colors[bad]
        want = [(bad,)] * 3 if same else ["went on", (bad,), (bad,)]
        if bad == 0 and not same:
            want.insert(1, (0,))
        said = outcome(member)
        if rank != bad and said.value != want:
            job.fault(f"misnamed: rank {rank} {said}; want {want}, groups {colors}")
    job.may_leave |= {".sock", ".fault"} if bad == 0 else set()
    return job.end()


def _port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def at_the_door(rng: random.Random, folder: Path) -> Found:
    """Ranks meet at a TCP door among strangers, perhaps one of another secret."""
    from tests.chaos.scenarios import hostile_bytes, stranger

    job = Job(rng, folder, rng.randint(2, 4))
    port, own = _port(), folder / "secret"
    wrong = folder / "wrong"
    for secret in (own, wrong):
        secret.write_text(secrets.token_hex(16))
        secret.chmod(0o600)
    seed, many = rng.getrandbits(40), rng.randint(3, 60)
    hold = rng.random() < 0.3

    def flood(me: Me) -> None:
        its, kept = random.Random(seed), []
        for _ in range(many):
            if hold and its.random() < 0.5:
                try:
                    sock = socket.create_connection(("127.0.0.1", port), 0.3)
                except OSError:
                    continue
                kept.append(sock)
                with contextlib.suppress(OSError):
                    sock.sendall(hostile_bytes(its)[: its.randrange(30)])
            else:
                stranger(its, socket.AF_INET, ("127.0.0.1", port))

    def before() -> None:
        os.environ["STRETTO_SECRET_FILE"] = os.fspath(own)

    def before_wrong() -> None:
        os.environ["STRETTO_SECRET_FILE"] = os.fspath(wrong)

    address = f"tcp://127.0.0.1:{port}"
    for i in range(rng.randint(1, 2)):
        job.team.start(flood, f"stranger{i}")
    members = [
        job.start(
            r,
            address=address,
            turns=4,
            before=before,
            late_s=rng.random() * 0.3,
            deadline_s=15.0,
        )
        for r in range(job.ranks)
    ]
    if rng.random() < 0.3:
        liar = job.start(
            1, address=address, turns=2, before=before_wrong, deadline_s=1.0
        )
        job.team.until_over()
        if not outcome(liar).error:
            job.fault(f"a rank of another secret {spell(liar)}")
    job.team.until_over()
    job.check_right(members, f"{many} strangers at the door")
    job.may_leave |= {".fault"}
    return job.end()


SCENARIOS = {
    "late ranks": (late_ranks, 1),
    "one never comes": (never_comes, 1),
    "killed, started anew, met again": (meet_again, 4),
    "twice, or to the wrong job": (wrong_rank, 2),
    "different calls": (different_calls, 2),
    "nested groups lose a rank": (nested_groups, 3),
    "strangers at the door": (at_the_door, 3),
}
