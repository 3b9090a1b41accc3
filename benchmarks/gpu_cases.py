"""The cases of gpu_experiments.py: algorithms, sizes, and shapes of their kernels."""

from __future__ import annotations

K, M = 1 << 10, 1 << 20
AR1, AR2 = "all_reduce/one_shot", "all_reduce/two_shot"
AG, RS = "all_gather/one_shot", "reduce_scatter/one_shot"


def shapes(*pairs: str, tile: int = M) -> list[str]:
    """Return packet schedules from `blocks x threads [depth]` words."""
    found = []
    for pair in pairs:
        blocks, threads, *depth = pair.replace("x", " ").split()
        words = f"push packets staged blocks={blocks} threads={threads}"
        words += "".join(f" depth={d}" for d in depth)
        found.append(f"{words} tile_bytes={tile}")
    return found


CASES: list[tuple[str, int, list[str]]] = [
    (AR2, 4 * M, shapes("132x512")),
    (AG, 16 * M, shapes("132x512", "128x768 1")),
    (AR2, M, shapes("96x256", "72x256")),
    (AR2, 16 * M, shapes("132x512")),
    (RS, 16 * M, shapes("132x512")),
    (AR2, 256 * K, shapes("32x256")),
    (AG, M, shapes("104x256")),
    (AR1, 64 * K, shapes("64x64")),
    (AR1, K, shapes("2x64")),
    (AG, 4 * M, shapes("90x768")),
    (AG, K, shapes("1x128")),
]
"""Algorithm, bytes of the full vector, schedules; the most telling first."""
VIRTUAL_CASES = [(AR1, K), (AG, K), (AR2, 256 * K), (AR2, M), (AG, M)]
"""Those that four virtual ranks on one GPU are measured on: at most 32 blocks each."""


def blocks_of(schedule: str) -> int:
    """Return the blocks of a schedule's text."""
    words = [w for w in schedule.split() if w.startswith("blocks=")]
    return int(words[0][7:]) if words else 1


def worth(schedule: str, patches: list[str]) -> list[str]:
    """Return the patches to try under a schedule: packets' for the main ones."""
    main = any(schedule in schedules for _, _, schedules in CASES)
    return patches if main and "packets" in schedule else ["base"]


def chosen(only: str, ranks: int) -> list[tuple[str, int, list[str]]]:
    """Return the cases to measure: those whose name and bytes contain `only`."""
    cases = [c for c in CASES if only in f"{c[0]} {c[1]}"]
    if ranks > 1:
        return cases
    return [
        (name, nbytes, [s for s in schedules if blocks_of(s) <= 32])
        for name, nbytes, schedules in [
            *cases,
            (AR2, M, shapes("32x512")),
            (AG, M, shapes("32x512")),
        ]
        if (name, nbytes) in VIRTUAL_CASES
    ]
