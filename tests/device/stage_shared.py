"""Collectives that some rank has one array of, on memory that peers reach."""

from __future__ import annotations

import numpy as np
from stage import Stage, stage

COUNTS = (1, 4099, (1 << 18) + 3)
BULK = (
    "gather/flat pull bulk",
    "reduce/flat pull bulk",
    "scatter/flat push bulk",
    "broadcast/flat push bulk",
    "permute/direct push bulk",
    "permute/direct pull bulk",
)
ENGINE = (
    "all_gather/one_shot push engine",
    "all_to_all/one_shot push engine",
    "gather/flat pull engine",
    "scatter/flat push engine",
    "broadcast/flat push engine",
    "permute/direct push engine",
)


@stage
def rooted_and_shared(s: Stage) -> None:
    """Kernels and copy engines; every root; what the root alone has is private."""
    seed = 0
    for words in (*BULK, *(ENGINE if s.device != "cpu" else ())):
        for count in COUNTS:
            for root in range(s.n):
                seed += 1
                text = f"{words}, {count} elements, root {root}"
                s.expect(_right(s, words, count, root, seed), text)
    s.sync()


def _right(s: Stage, words: str, count: int, root: int, seed: int) -> bool:
    """Make one call and compare; arrays of empty() are made for each."""
    n, me, here = s.n, s.rank, s.rank == root
    verb, pin = words.partition("/")[0], f"{words} zero_copy"
    drawn = np.random.default_rng(seed).integers(-99, 99, (n, n, count))
    given = s.torch.from_numpy(drawn.astype(np.float32)).to(s.device)

    def room(rows: int, fill: object = None) -> object:
        made = s.comm.empty((rows, count), "float32", device=s.device)
        made = s.torch.from_dlpack(made)
        made.fill_(float("nan")) if fill is None else made.copy_(fill)
        return made

    wide = verb in ("all_gather", "all_to_all")
    x = room(
        n if verb == "all_to_all" else 1,
        given[me] if verb == "all_to_all" else given[me, :1],
    )
    out = room(n if wide else 1)
    s.sync()
    s.comm.barrier()
    if verb == "gather":
        got, want = s.comm.gather(x, root=root, algorithm=pin), given[:, :1]
    elif verb == "reduce":
        got, want = s.comm.reduce(x, root=root, algorithm=pin), given[:, :1].sum(0)
    elif verb == "scatter":
        whole = given[root].clone() if here else None
        got = s.comm.scatter(whole, root=root, out=out, algorithm=pin)
        want = given[root, me : me + 1]
    elif verb == "broadcast":
        source = given[root, :1].clone() if here else None
        got = s.comm.broadcast(source, root=root, out=out, algorithm=pin)
        want = given[root, :1]
    elif verb == "permute":
        pairs = tuple((q, (q + root + 1) % n) for q in range(n))
        got = s.comm.permute(x, pairs, out=out, algorithm=pin)
        want = given[(me - root - 1) % n, :1]
    elif verb == "all_gather":
        got, want = (
            s.comm.all_gather(x, out=out.reshape(n, 1, count), algorithm=pin),
            given[:, :1],
        )
    else:
        got, want = s.comm.all_to_all(x, out=out, algorithm=pin), given[:, me]
    s.sync()
    if verb in ("gather", "reduce") and not here:
        return got is None
    return bool((got == want).all())
