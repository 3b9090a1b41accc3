"""Which algorithms and schedules are worth trying at a size, per collective."""

from __future__ import annotations

from stretto.runtime.select import ZERO_COPY, Profile, Question

K, M = 1 << 10, 1 << 20

__all__ = ["HALF", "candidates", "few", "shapes", "shipped"]

HALF = 12
"""SMs: half of the channels that NCCL has for large messages on four GPUs."""


def shapes(how: str, collective: str, nbytes: int, ranks: int) -> list[tuple[str, str]]:
    """Return what is measured at a size: the library's choice, or all there may be.

    And, of large sums, what keeps few SMs.
    """
    found = shipped(collective, nbytes, ranks)
    if how == "search":
        found += candidates(collective, nbytes, ranks)
    if collective == "all_reduce" and nbytes >= 64 * M:
        found += few()
    return list(dict.fromkeys(found))


def shipped(collective: str, nbytes: int, ranks: int) -> list[tuple[str, str]]:
    """Return what the shipped profile says of registered arrays."""
    asked = Question(
        executor="cuda",
        collective=collective,
        num_ranks=ranks,
        nbytes=nbytes,
        memory=ZERO_COPY,
        in_place=False,
    )
    found = Profile.shipped("cuda").choose(asked)
    return [] if found is None else [(found.algorithm.name, str(found.schedule))]


def few() -> list[tuple[str, str]]:
    """Return sums of large vectors on as few SMs as NCCL has channels, or half.

    Half of it by copy engines: how few are enough for the other half?
    """
    words = f"pull bulk zero_copy copy:engine+push tile_bytes={1 << 30}"
    engines = ((480, 8), (480, 12), (384, 12), (384, 16))
    found = [f"{words} threads={t} depth=4 blocks={b}" for t, b in engines]
    words = f"pull bulk zero_copy copy:push tile_bytes={1 << 30}"
    found += [f"{words} threads={t} depth=4 blocks={HALF}" for t in (384, 480, 640)]
    words = f"push bulk zero_copy tile_bytes={1 << 30}"
    found += [
        f"{words} threads={t} depth=4 blocks={b}" for t, b in ((640, 12), (992, 16))
    ]
    return [("all_reduce/two_shot", schedule) for schedule in found]


def candidates(collective: str, nbytes: int, ranks: int) -> list[tuple[str, str]]:
    """Return (algorithm, schedule) pairs for a size of the full vector."""
    found: list[tuple[str, str]] = []
    chunk = nbytes // ranks
    if collective == "all_reduce":
        if nbytes <= 256 * K:
            found += _packets("all_reduce/one_shot", nbytes)
        if 16 * K <= nbytes <= 16 * M:
            found += _packets("all_reduce/two_shot", chunk)
        if nbytes >= 512 * K:
            found += _bulk("all_reduce/two_shot", chunk)
        if nbytes >= 64 * M:
            found += _large_sums()
        return found
    name = f"{collective}/one_shot"
    if chunk <= 4 * M:
        found += _packets(name, chunk, parts=ranks)
    if nbytes >= 128 * K:
        found += _bulk(name, chunk)
    if nbytes >= 16 * M and collective != "all_to_all":
        words = f"push bulk zero_copy tile_bytes={1 << 30}"
        found += [
            (f"{collective}/ring", f"{words} threads={t} blocks={b}")
            for t, b in ((384, 120), (384, 128), (640, 120), (768, 120), (768, 128))
        ]
        words += " threads=512"
        found += [
            (f"{collective}/ring", f"{words} blocks={b}")
            for b in (32, 64, 112, 116, 120, 124, 126, 128, 132)
        ]
    if nbytes >= 4 * M and collective != "reduce_scatter":
        found += [(name, f"push engine zero_copy blocks={k}") for k in (1, 2, 3)]
    return found


def _large_sums() -> list[tuple[str, str]]:
    """Return what sums large vectors: on many SMs, and on few."""
    words = "push bulk zero_copy threads=512 tile_bytes=1073741824"
    found = [
        ("all_reduce/ring", f"{words} blocks=64"),
        ("all_reduce/ring", f"{words} blocks=128"),
        ("all_reduce/two_shot", f"{words} blocks=128"),
        ("all_reduce/two_shot", f"{words} blocks=64 depth=8"),
    ]
    words = f"pull bulk zero_copy copy:engine+push tile_bytes={1 << 30}"
    found += [
        ("all_reduce/two_shot", f"{words} threads={t} depth=4 blocks={b}")
        for t, b in ((480, 32), (512, 64))
    ]
    words = "push bulk zero_copy tile_bytes=1073741824"
    found += [
        ("all_reduce/two_shot", f"{words} threads=256 depth=8 blocks={b}")
        for b in (132, 120)
    ]
    return found


def _packets(name: str, part: int, parts: int = 1) -> list[tuple[str, str]]:
    """Return packets with about one vector a thread, more, and fewer.

    Where every rank reads several parts, a thread for each vector of all of them.
    """
    vectors = max(1, part // 16)
    shapes = dict.fromkeys(
        (threads, min(128, max(1, times * vectors // (threads * 4))))
        for threads in (64, 128, 256, 512, 768)
        for times in (1, 2, 3, 4, 6, 8, 4 * parts)
    )
    # More than 4 vectors a thread is worth trying only where no more blocks fit.
    worth = [
        (t, b) for t, b in shapes if b >= 96 or vectors <= 8 * t * b or vectors < 64
    ]
    schedules = [
        f"push packets staged blocks={b} threads={t} tile_bytes={1 << 20}"
        for t, b in worth
    ]
    schedules += [
        f"push packets staged blocks={b} threads={t} depth={d} tile_bytes={1 << 20}"
        for t, b in worth
        for d in (1, 8)
        if vectors >= 16 * K and b >= 64
    ]
    # Counts that are no power of two, and (large) short epochs of blocks that overlap.
    # Slices that do not begin at multiples of a power of two spread over the links.
    odd = {
        64 * K: ((24, 256), (22, 192), (12, 384), (42, 128)),
        256 * K: (
            (43, 512), (48, 768), (63, 512), (42, 992), (120, 256), (104, 256),
            (100, 256), (92, 256), (88, 256), (80, 256), (72, 256), (66, 256),
            (54, 384), (60, 320), (66, 320), (80, 320),
        ),
        1 * M: (
            (131, 512), (130, 512), (126, 512), (120, 512), (112, 512), (99, 512),
            (66, 512), (90, 768), (132, 384), (132, 640), (131, 256), (99, 704),
        ),
        4 * M: ((131, 512), (132, 256), (132, 384), (132, 640), (120, 512)),
    }  # fmt: skip
    schedules += [
        f"push packets staged blocks={b} threads={t} tile_bytes={1 << 20}"
        for b, t in odd.get(part, ())
    ]
    if part >= 1 * M:
        schedules += [
            f"push packets staged blocks={b} threads={t} tile_bytes={tile}"
            for b, t, tile in (
                (128, 512, 1 << 13),
                (128, 256, 1 << 12),
                (132, 512, 1 << 20),
            )
        ]
    return [(name, s) for s in dict.fromkeys(schedules)]


def _bulk(name: str, part: int) -> list[tuple[str, str]]:
    """Return zero-copy kernels, pushing and pulling, and some that stage."""
    sizes = (8, 16, 32) if part <= 512 * K else (16, 32, 48, 64, 96, 128)
    ways = ["pull bulk zero_copy", "push bulk zero_copy"]
    if name == "all_reduce/two_shot":  # pull what is summed, push what is shared
        ways[0] = "pull bulk zero_copy copy:push"
    found = [
        (name, f"{way} blocks={b} threads=512 tile_bytes={1 << 30}")
        for way in ways
        for b in sizes
    ]
    if part > 512 * K:
        found += [
            (name, f"{way} blocks={b} threads={t} depth={d} tile_bytes={size}")
            for way in ways
            for b in (64, 128, 131)
            for t, d, size in (
                (512, 8, 1 << 30),
                (768, 4, 1 << 30),
                (256, 8, 1 << 30),
                (512, 4, 1 << 18),
            )
        ]
    found += [(name, f"push bulk staged blocks={b} threads=512") for b in (64, 128)]
    return found
