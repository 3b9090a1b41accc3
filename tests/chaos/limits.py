"""Little of everything: descriptors, memory, disk, sound caches, a clock to trust."""

import ctypes
import os
import random
import resource
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from tests.chaos.jobs import Found, Job, outcome, spell
from tests.chaos.talk import ALL, equal, talk
from tests.chaos.team import Me, Skipped, Told, gives_back, held, names_in, tell_of

import stretto
from stretto.errors import StrettoError

NO_LIMITS: dict[str, Any] = {"limit": bool, "undo": bool}
_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def _limit(kind: int, number: int) -> None:
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (number, hard))


def be_limited(
    me: Me, *, job: Any, rank: int, limit: Callable[[], None], undo: Callable[[], None]
) -> Told:
    """Meet under a limit, which may fail; then, without it, meet again and be right."""
    before = held()
    told = Told(value="done")
    comm = None
    limit()
    try:
        comm = stretto.connect(rank, job.ranks, job.address, deadline_s=2.5)
        for turn in range(4):
            talk(comm, job.seed, turn)
    except StrettoError as e:
        undo()
        told = tell_of(e)
    finally:
        undo()
        if comm is not None:
            comm.close()
        del comm
    gives_back(before)
    me.say("tried")
    me.hear()
    comm = stretto.connect(rank, job.ranks, f"{job.address}-2", deadline_s=15.0)
    for turn in range(3):
        talk(comm, job.seed, turn)
    comm.close()
    del comm
    gives_back(before)
    return told


def run_limited(
    job: Job,
    bad: int,
    limit: Callable[[], None],
    undo: Callable[[], None],
    *,
    may_die: bool = False,
) -> Found:
    """Limit one rank: all hear of it, or all is right; afterwards all is well."""
    members = []
    for r in range(job.ranks):
        limits = {"limit": limit, "undo": undo} if r == bad else NO_LIMITS
        work = partial(be_limited, job=job, rank=r, **limits)
        members.append(job.team.start(work, f"rank{r}"))
    for member in members:
        while not member.said and member.status is None:
            job.team.watch(0.01)
            assert time.monotonic() < job.team.until, job.team._hang([member])
    for member in members:
        job.team.tell(member, "go")
    if may_die and members[bad].status is not None:
        for member in members:
            member.kill()
        job.may_leave |= {".sock", ".fault"}
    job.team.until_over()
    heard = [outcome(m) for m in members]
    for rank, (member, said) in enumerate(zip(members, heard, strict=True)):
        if said.value == "done" or (may_die and said.error == "nothing"):
            continue
        if rank != bad and bad not in said.blamed and f"rank {bad}" not in said.text:
            job.fault(f"misnamed: {member.name} {spell(member)}; want {bad}, limited")
    if heard[bad].error and not heard[bad].is_ours:
        job.fault(f"raw: {spell(members[bad])}\n{heard[bad].trace}")
    job.may_leave |= {".fault"}
    return job.end()


def few_descriptors(rng: random.Random, folder: Path) -> Found:
    """A rank may open a few more descriptors, from none to enough."""
    job = Job(rng, folder, rng.randint(2, 4))
    more, old = rng.randint(0, 30), resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def limit() -> None:
        _limit(resource.RLIMIT_NOFILE, len(names_in("/proc/self/fd")) + more)

    def undo() -> None:
        _limit(resource.RLIMIT_NOFILE, old)

    return run_limited(job, rng.randrange(job.ranks), limit, undo)


def little_memory(rng: random.Random, folder: Path) -> Found:
    """A rank may have a little more address space, from none to enough."""
    job, more = Job(rng, folder, rng.randint(2, 3)), int(2 ** rng.uniform(14, 33))
    job.team.may_lack_threads = True

    def limit() -> None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + more)

    def undo() -> None:
        _limit(resource.RLIMIT_AS, resource.RLIM_INFINITY)

    return run_limited(job, rng.randrange(job.ranks), limit, undo, may_die=True)


def small_files(rng: random.Random, folder: Path) -> Found:
    """A rank may write small files only: shared memory is a file, too."""
    job = Job(rng, folder, rng.randint(2, 3))
    most = int(2 ** rng.uniform(0, 28))

    def limit() -> None:
        _limit(resource.RLIMIT_FSIZE, most)

    def undo() -> None:
        _limit(resource.RLIMIT_FSIZE, resource.RLIM_INFINITY)

    return run_limited(job, rng.randrange(job.ranks), limit, undo)


def mount_small(where: Path, options: str) -> None:
    """Mount a small file system there, in a mount namespace of our own, or skip."""
    libc = ctypes.CDLL(None, use_errno=True)

    def must(result: int, what: str) -> None:
        if result:
            why = os.strerror(ctypes.get_errno())
            raise Skipped(f"no small file system here: {what}: {why}")

    must(libc.unshare(_CLONE_NEWNS), "unshare")
    must(libc.mount(None, b"/", None, _MS_REC | _MS_PRIVATE, None), "private /")
    place = os.fsencode(where)
    must(libc.mount(b"none", place, b"tmpfs", 0, options.encode()), "mount")


def full_disk(rng: random.Random, folder: Path) -> Found:
    """The run folder, the caches and /dev/shm are on a disk that is full, or nearly."""
    kind = rng.choice(("run", "cache", "shm"))
    job = Job(rng, folder, rng.randint(2, 3))
    disk = {"run": folder / "r", "cache": folder / "c", "shm": Path("/dev/shm")}[kind]
    disk.mkdir(exist_ok=True)
    inodes = rng.randint(1, 4)

    def before() -> None:
        if kind == "cache":
            os.environ["STRETTO_CACHE_DIR"] = os.fspath(disk)
            _forget_compiled()

    def all_of_it(me: Me) -> list[str]:
        try:
            mount_small(disk, f"size=4k,nr_inodes={inodes},mode=700")
        except Skipped as e:
            return ["skip", str(e)]
        inner = Job(rng, folder, job.ranks)
        warnings.simplefilter("ignore")
        members = inner.start_all(turns=3, deadline_s=20.0, before=before, counts=False)
        inner.team.until_over()
        for member in members:
            said = outcome(member)
            fine = said.value == "done" or (said.error and said.is_ours)
            if not fine or (kind != "run" and said.value != "done"):
                inner.fault(f"a full disk for {kind}: {spell(member)}\n{said.trace}")
        inner.may_leave |= {".sock", ".fault"}
        return inner.end().faults

    member = job.team.start(all_of_it, "disk")
    job.team.until_over()
    faults = outcome(member).value
    if faults and faults[0] == "skip":
        job.end()
        raise Skipped(faults[1])
    job.found.faults += [str(faults)] if faults else []
    return job.end()


def _forget_compiled() -> None:
    """Have this process load, or compile, what the CPU executor runs, once more."""
    from stretto.executors.cpu.running import loaded

    loaded.interpreter.cache_clear()
    running = "stretto.executors.cpu.running"
    for name in ("interpreter", "kernels"):
        sys.modules.pop(f"{running}.{name}", None)
        vars(sys.modules[running]).pop(name, None)


def spoil(rng: random.Random, path: Path) -> None:
    """Change a file in one of many ways."""
    raw = bytearray(path.read_bytes())
    how = rng.randrange(7)
    if how == 0:
        raw = raw[: rng.randrange(len(raw) + 1)]
    elif how == 1 and raw:
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    elif how == 2:
        raw = bytearray(rng.randbytes(rng.choice((0, 10, 70_000))))
    elif how == 3:
        path.chmod(0o666)
    elif how == 4:
        path.unlink()
        path.mkdir()
        return
    elif how == 5:
        path.unlink()
        path.symlink_to("/dev/null")
        return
    elif how == 6:
        path.chmod(0)
    path.write_bytes(raw) if how != 6 else None


def corrupt_caches(rng: random.Random, folder: Path) -> Found:
    """Files that were compiled are spoilt: all goes on, and they are made anew."""
    from stretto import caches

    job = Job(rng, folder, 2)
    place = folder / "cache"
    if caches.folder().is_dir():
        shutil.copytree(caches.folder(), place, symlinks=True)
    files = sorted(p for p in place.rglob("*") if p.is_file())
    for path in rng.sample(files, min(len(files), rng.choice((1, 1, 2)))):
        spoil(rng, path)

    def before() -> None:
        os.environ["STRETTO_CACHE_DIR"] = os.fspath(place)
        warnings.simplefilter("ignore")
        _forget_compiled()

    members = job.start_all(turns=3, before=before, deadline_s=50.0, counts=False)
    job.team.until_over()
    job.check_right(members, "a spoilt cache")
    return job.end()


def odd_profiles(rng: random.Random, folder: Path) -> Found:
    """The user's profiles are spoilt: a clear error that names the file, or none."""
    from stretto.runtime.choice import select

    job = Job(rng, folder, rng.randint(2, 3))
    place = folder / "profiles"
    place.mkdir()
    shipped = sorted(Path(select.__file__).parent.rglob("*.toml"))
    shipped += sorted(Path(stretto.__file__).parent.rglob("*cpu*.toml"))
    path = place / "cpu.toml"
    text = shipped[0].read_bytes() if shipped else b"executor = 'cpu'\n"
    path.write_bytes(text * rng.choice((1, 1, 200)))
    for _ in range(rng.randint(1, 3)):
        if path.is_file() and not path.is_symlink():
            spoil(rng, path)

    def before() -> None:
        os.environ["STRETTO_PROFILES"] = os.fspath(place)
        warnings.simplefilter("ignore")

    members = job.start_all(turns=2, before=before, deadline_s=5.0)
    job.team.until_over()
    for member in members:
        said = outcome(member)
        if said.value != "done" and not said.is_ours:
            job.fault(f"a spoilt profile: {spell(member)}\n{said.trace}")
        elif said.error and member is members[0] and "cpu.toml" not in said.text:
            job.fault(f"a spoilt profile is not named: {spell(member)}")
    job.may_leave |= {".fault"}
    return job.end()


def odd_run_folder(rng: random.Random, folder: Path) -> Found:
    """The run folder is a file, of others' mode, read-only, a link: errors of ours."""
    job = Job(rng, folder, 2)
    path = folder / "r" / "stretto"
    how = rng.choice(("file", "mode", "link", "dangling", "fifo", "full of old"))
    if how == "file":
        path.write_text("x")
    elif how == "mode":
        path.mkdir(mode=0o777)
        path.chmod(0o777)
    elif how == "link":
        (folder / "elsewhere").mkdir()
        path.symlink_to(folder / "elsewhere")
    elif how == "dangling":
        path.symlink_to(folder / "nowhere")
    elif how == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir(mode=0o700)
        for i in range(200):
            (path / f"{i}.{rng.choice(('sock', 'fault', 'x'))}").write_text("{}")
    members = job.start_all(turns=2, deadline_s=2.0)
    job.team.until_over()
    for member in members:
        said = outcome(member)
        want = how in ("mode", "full of old")
        if (said.value == "done") != want or not said.is_ours:
            job.fault(f"a run folder that is a {how}: {spell(member)}\n{said.trace}")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif path.is_symlink() or path.exists():
        path.unlink()
    return job.end()


def wrong_clocks(rng: random.Random, folder: Path) -> Found:
    """The time of day jumps by years, and the host seems to have slept: all goes on."""
    job = Job(rng, folder, rng.randint(2, 3))
    jumps = [rng.choice((-1, 1)) * 10 ** rng.uniform(-1, 9.2) for _ in range(6)]
    slept = [abs(j) for j in jumps]

    def lie(comm: Any = None, turn: int = 0) -> None:
        real, real_ns = time.clock_gettime, time.clock_gettime_ns
        day, boot = jumps[turn % 6], slept[turn % 6]

        def seconds(which: int) -> float:
            extra = {time.CLOCK_REALTIME: day, time.CLOCK_BOOTTIME: boot}
            return real(which) + extra.get(which, 0.0)

        def nanoseconds(which: int) -> int:
            extra = {time.CLOCK_REALTIME: day, time.CLOCK_BOOTTIME: boot}
            return real_ns(which) + int(extra.get(which, 0.0) * 1e9)

        time.clock_gettime, time.clock_gettime_ns = seconds, nanoseconds
        now = time.time
        time.time = lambda: now() + day

    liar = rng.randrange(job.ranks)
    members = []
    for r in range(job.ranks):
        lies = {"before": lie, "hook": lie} if r == liar else {}
        members.append(job.start(r, turns=5, **lies))
    job.team.until_over()
    job.check_right(members, "wrong clocks")
    again = [
        job.start(r, turns=2, **({"before": lie} if r == liar else {}))
        for r in range(job.ranks)
    ]
    job.team.until_over()
    job.check_right(again, "wrong clocks, again")
    return job.end()


def many_times(rng: random.Random, folder: Path) -> Found:
    """Connect, talk and close over and over: nothing grows."""
    job = Job(rng, folder, rng.randint(2, 3))
    cycles = rng.randint(3, 12)

    def work(me: Me, rank: int) -> str:
        before = held()
        for nth in range(cycles):
            with stretto.connect(rank, job.ranks, job.address, deadline_s=15.0) as comm:
                talk(comm, f"{job.seed}{nth}", 0, ALL)
                x = comm.empty(10)
                x[:] = 1
                equal(comm.all_reduce(x), np.full(10, job.ranks), "registered")
                del x
            del comm
        gives_back(before)
        return "done"

    members = [
        job.team.start(partial(work, rank=r), f"rank{r}") for r in range(job.ranks)
    ]
    job.team.until_over()
    job.check_right(members, f"{cycles} cycles")
    return job.end()


SCENARIOS = {
    "few descriptors": (few_descriptors, 3),
    "little memory": (little_memory, 2),
    "small files only": (small_files, 2),
    "a full disk": (full_disk, 2),
    "corrupt caches": (corrupt_caches, 0.3),
    "spoilt profiles": (odd_profiles, 2),
    "odd run folders": (odd_run_folder, 1),
    "wrong clocks": (wrong_clocks, 2),
    "connect and close again and again": (many_times, 1),
}
