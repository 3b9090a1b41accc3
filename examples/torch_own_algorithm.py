"""An algorithm of one's own: written, proved, and used by a model, in one file.

python examples/torch_own_algorithm.py

The all_reduce below lets pairs of ranks add what they have, at a distance that doubles.
Nothing that was not proved can run: a slip is an error with its line, before any
process starts. The model calls `dist.all_reduce` and knows nothing of it.
"""

import tempfile

import torch
import torch.distributed as dist
from torch import Tensor, nn

import stretto
import stretto.torch
from stretto.errors import PromiseError
from stretto.lang import Ranks
from stretto.verify import verify

RANKS = 2


@stretto.algorithm("all_reduce/my_doubling")
def doubling(ranks: Ranks) -> None:
    """Add what the rank at distance 1, 2, 4... has, until all have all."""
    for r in ranks:
        r.output[:] = r.input[:]
    distance = 1
    while distance < len(ranks):
        for a in range(len(ranks)):
            b = a ^ distance
            if a < b:
                both = stretto.reduce(ranks[a].output[:], ranks[b].output[:])
                ranks[a].output[:] = both
                ranks[b].output[:] = ranks[a].output[:]
        distance *= 2


@stretto.algorithm("all_reduce/my_slip")
def slip(ranks: Ranks) -> None:
    """Forget that the second rank wants the sum, too."""
    for r in ranks:
        r.output[:] = r.input[:]
    ranks[0].output[:] = stretto.reduce(ranks[0].output[:], ranks[1].output[:])


class Divided(nn.Linear):
    """A matrix whose columns are divided among ranks."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum over ranks."""
        y = super().forward(x)
        dist.all_reduce(y)
        return y


@torch.no_grad()
def work(rank: int, meet: str) -> None:
    """Use the algorithm for every all_reduce of the default group."""
    dist.init_process_group(
        "stretto",
        init_method=meet,
        rank=rank,
        world_size=RANKS,
        pg_options=stretto.torch.Options(algorithms={"all_reduce": doubling}),
    )
    model = Divided(4, 3, bias=False)
    nn.init.constant_(model.weight, rank + 1)
    out = model(torch.ones(2, 4))
    assert bool((out == 4 * sum(range(1, RANKS + 1))).all())
    if rank == 0:
        print("used by the model:", out[0].tolist())
    dist.destroy_process_group()


def main() -> None:
    """Prove, show what a slip looks like, and run."""
    for ranks in (2, 4, 8):
        proved = verify(doubling.build(ranks))
        print(f"proved for {ranks} ranks: {len(proved.value.ops)} assignments")
    try:
        verify(slip.build(RANKS))
    except PromiseError as e:
        print("refused:", str(e).splitlines()[0])
    with tempfile.TemporaryDirectory() as folder:
        meet = f"file://{folder}/meet"
        torch.multiprocessing.spawn(work, (meet,), nprocs=RANKS)


if __name__ == "__main__":
    main()
