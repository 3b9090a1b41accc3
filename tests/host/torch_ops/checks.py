"""Checks that ranks run, each by its name; what is wrong comes back as sentences."""

import torch

CHECKS = {}
SLOW = []


def check(function=None, *, slow=False):
    """Let a function of a bench be run on every rank; a slow one, when asked for."""
    if function is None:
        return lambda made: check(made, slow=slow)
    CHECKS[function.__name__] = function
    if slow:
        SLOW.append(function.__name__)
    return function


class Bench:
    """A rank: its communicator, the same random numbers everywhere, what is wrong."""

    def __init__(self, comm):
        self.comm, self.rank, self.n = comm, comm.rank, comm.num_ranks
        self.wrong = []
        self.device = torch.get_default_device()
        self._generator = torch.Generator("cpu").manual_seed(7)

    def randn(self, *shape, dtype=torch.float32):
        """Return random numbers, the same on every rank and device."""
        made = torch.randn(*shape, generator=self._generator, device="cpu")
        return made.to(self.device, dtype)

    def draw(self, *shape, dtype=torch.float32):
        """Return the tensors of all ranks; every rank draws the same."""
        return [self.randn(*shape, dtype=dtype) for _ in range(self.n)]

    def same(self, what, got, want, tolerance=1e-5):
        """Note a difference."""
        if got is None or want is None or got.shape != want.shape:
            shape = None if got is None else tuple(got.shape)
            self.wrong.append(f"{what}: {shape}, not {tuple(want.shape)}")
            return
        if got.dtype != want.dtype:
            self.wrong.append(f"{what}: {got.dtype}, not {want.dtype}")
            return
        one, other = got.detach().double().cpu(), want.detach().double().cpu()
        if not torch.allclose(one, other, rtol=tolerance, atol=tolerance):
            off = (one - other).abs().max().item()
            self.wrong.append(f"{what}: off by {off}")

    def true(self, what, holds):
        """Note what does not hold."""
        if not holds:
            self.wrong.append(what)

    def raises(self, what, kind, words, function, *args, **options):
        """Note a call that does not raise an error with such words."""
        try:
            function(*args, **options)
        except kind as e:
            if words not in str(e):
                self.wrong.append(f"{what}: says {e}")
        else:
            self.wrong.append(f"{what}: nothing was raised")


def seeded(seed, *shape):
    """Return random numbers of a seed, the same on every device."""
    generator = torch.Generator("cpu").manual_seed(seed)
    made = torch.randn(*shape, generator=generator, device="cpu")
    return made.to(torch.get_default_device())


def run(comm, names):
    """Run checks on one rank; return what is wrong, by name."""
    torch.set_num_threads(1)
    found = {}
    for name in names:
        bench = Bench(comm)
        try:
            CHECKS[name](bench)
        except Exception as e:
            bench.wrong.append(f"{type(e).__name__}: {e}"[:800])
        found[name] = bench.wrong
    return found
