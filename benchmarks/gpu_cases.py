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


def bulk(mover: str, *shapes_: str) -> list[str]:
    """Return zero-copy schedules from `blocks x threads depth` words."""
    found = []
    for shape in shapes_:
        blocks, threads, depth = shape.replace("x", " ").split()
        words = f"push bulk zero_copy {mover} blocks={blocks} threads={threads}"
        found.append(f"{words} depth={depth} tile_bytes={1 << 30}".replace("  ", " "))
    return found


CASES: list[tuple[str, int, list[str]]] = [
    (AR1, K, shapes("1x64", "1x128", "1x256")),
    (AG, K, shapes("1x64", "1x128")),
    (AR1, 64 * K, shapes("16x256", "32x128", "64x64")),
    (AG, 64 * K, shapes("8x512", "32x128")),
    (AR2, 256 * K, shapes("16x256", "32x256", "64x128", "128x64")),
    (AR2, M, shapes("42x768", "48x512", "64x256", "128x128", "96x256 1")),
    (AG, M, shapes("64x256 8", "128x128", "85x768")),
    (RS, K, shapes("1x128")),
    (AR1, 16 * K, shapes("4x256", "16x128", "8x128")),
    (AR2, 4 * M, shapes("128x512", "96x512", "64x256 8")),
    (AG, 4 * M, shapes("64x256 8", "128x256 8")),
    (RS, M, shapes("64x256 1", "128x128")),
    (AG, 16 * M, shapes("128x256 8", "128x768")),
    (AR2, 16 * M, shapes("128x512")),
    (AG, 64 * M, bulk("tma", "8x64 8", "16x64 8", "32x64 4", "32x64 8", "64x64 4")),
    (AG, 64 * M, bulk("", "64x256 8")),
    (AR2, 64 * M, bulk("tma", "16x512 8", "32x512 8", "64x512 4", "32x256 8")),
    (RS, 64 * M, bulk("tma", "32x512 8", "64x512 4")),
    (RS, 64 * M, bulk("unordered", "16x64 8", "32x64 8", "64x64 4")),
    (AR2, 64 * M, bulk("unordered", "16x64 8", "32x64 8")),
    (AG, 16 * M, bulk("tma", "32x64 8", "64x64 4")),
]
"""Algorithm, bytes of the full vector, schedules."""
SHAPES: list[tuple[str, int, list[str]]] = [
    (AR2, M, shapes("48x768", "43x512", "60x512", "63x512", "64x512", "85x384")),
    (AR2, M, shapes("96x384", "120x256", "128x256", "132x128", "42x992", "32x992")),
    (AR2, 256 * K, shapes("24x256", "12x384", "22x192", "42x128", "48x96", "16x288")),
    (AG, M, shapes("120x256", "132x256", "96x256", "48x768", "128x64 8", "96x512")),
    (AG, 4 * M, shapes("128x256", "256x256", "132x512", tile=4 * K)),
    (AG, 4 * M, shapes("128x256", "128x512", "256x256", tile=8 * K)),
    (AG, 4 * M, shapes("128x512", "64x512", "120x512", tile=16 * K)),
    (AR2, 4 * M, shapes("128x256", "256x256", "132x512", tile=4 * K)),
    (AR2, 4 * M, shapes("128x768", "85x768", "120x512", "132x512", "107x640")),
    (AR2, 4 * M, shapes("128x512", "64x512", tile=8 * K)),
    (AG, 16 * M, shapes("128x512", "256x256", tile=8 * K)),
    (AG, 16 * M, shapes("128x512", "132x768", tile=16 * K)),
    (AR2, 16 * M, shapes("128x512", "256x256", tile=8 * K)),
    (AR2, 16 * M, shapes("128x768", tile=16 * K)),
]
"""More shapes, without patches: odd counts of blocks, several epochs, two a SM."""
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
    cases = [c for c in (*CASES, *SHAPES) if only in f"{c[0]} {c[1]}"]
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
