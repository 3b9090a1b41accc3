"""What two ranks try of stretto.jax; each check compares with NumPy, or a sentence."""

import numpy as np
import pytest

from stretto.errors import CallError

CHECKS = {}


def check(function):
    """Register a check by its name."""
    CHECKS[function.__name__] = function
    return function


class Bench:
    """One rank: what others have is drawn here, too."""

    def __init__(self, comm):
        import jax

        import stretto.jax

        self.comm, self.jax, self.st = comm, jax, stretto.jax
        self.n, self.rank = comm.num_ranks, comm.rank

    def drawn(self, *shape, seed=0):
        """Return everybody's array."""
        chance = np.random.default_rng(seed)
        return chance.standard_normal((self.n, *shape)).astype(np.float32)

    def mine(self, every):
        return self.jax.numpy.asarray(every[self.rank])


def refused(call, words):
    """Have something refused, in words."""
    with pytest.raises(CallError) as raised:
        call()
    assert words in str(raised.value)


def due(b, every):
    """Return what each collective makes of everybody's arrays."""
    n, rank = b.n, b.rank
    parts = every.reshape(n, n, -1, *every.shape[2:])
    return {
        "all_reduce": every.sum(0),
        "all_gather": every,
        "reduce_scatter": parts.sum(0)[rank],
        "all_to_all": np.concatenate(parts[:, rank]),
        "broadcast": every[n - 1],
        "permute": every[(rank - 1) % n],
    }


def calls(b):
    """Return each collective as a function of x."""
    ring = [(r, (r + 1) % b.n) for r in range(b.n)]
    return {
        "all_reduce": lambda x: b.st.all_reduce(x, b.comm),
        "all_gather": lambda x: b.st.all_gather(x, b.comm),
        "reduce_scatter": lambda x: b.st.reduce_scatter(x, b.comm),
        "all_to_all": lambda x: b.st.all_to_all(x, b.comm),
        "broadcast": lambda x: b.st.broadcast(x, b.comm, b.n - 1),
        "permute": lambda x: b.st.permute(x, b.comm, ring),
    }


@check
def as_it_is_and_compiled(b):
    """The same numbers; the input stays."""
    for seed, (name, call) in enumerate(calls(b).items()):
        every = b.drawn(2 * b.n, 3, seed=seed)
        x, want = b.mine(every), due(b, every)[name]
        for how in (call, b.jax.jit(call)):
            np.testing.assert_allclose(how(x), want, rtol=1e-6, err_msg=name)
        np.testing.assert_array_equal(x, every[b.rank])


@check
def gradients(b):
    """Those of the sum of what all ranks return, found by differences elsewhere."""
    jnp = b.jax.numpy
    for seed, (name, call) in enumerate(calls(b).items()):
        every = b.drawn(2 * b.n, seed=seed)
        shape = due(b, every)[name].shape
        weights = b.drawn(*shape, seed=100 + seed)

        def loss(x, call=call, mine=weights[b.rank]):
            return jnp.vdot(call(x), mine)

        # Each is linear: the gradient of all losses is its transpose, of all weights.
        want = np.zeros_like(every)
        for r in range(b.n):
            for i in range(every.shape[1]):
                unit = np.zeros_like(every)
                unit[r, i] = 1
                for q in range(b.n):
                    there = Rank(b.n, q)
                    want[r, i] += np.vdot(due(there, unit)[name], weights[q])
        for how in (b.jax.grad(loss), b.jax.jit(b.jax.grad(loss))):
            got = how(b.mine(every))
            np.testing.assert_allclose(got, want[b.rank], rtol=1e-5, err_msg=name)


class Rank:
    def __init__(self, n, rank):
        self.n, self.rank = n, rank


@check
def many_in_order(b):
    """In loops, and what is compiled mixed with what is not; large ones too."""
    lax, jnp = b.jax.lax, b.jax.numpy

    @b.jax.jit
    def loop(x):
        def body(i, x):
            return b.st.all_reduce(x, b.comm) / b.n + i

        return lax.fori_loop(0, 5, body, x)

    x = jnp.full(3, float(b.rank))
    first = loop(x)
    second = b.st.all_reduce(x, b.comm)
    big = b.jax.jit(lambda x: b.st.all_reduce(x, b.comm))(jnp.ones(1 << 20))
    third = b.st.all_gather(jnp.full(1, b.rank), b.comm)
    mean = (b.n - 1) / 2
    np.testing.assert_allclose(first, [mean + 10] * 3)
    np.testing.assert_allclose(second, [mean * b.n] * 3)
    np.testing.assert_array_equal(big, np.full(1 << 20, b.n))
    np.testing.assert_array_equal(third[:, 0], np.arange(b.n))


@check
def types(b):
    """Narrow ones and whole numbers; averages, and largest ones without gradients."""
    jnp = b.jax.numpy
    for kind in (jnp.bfloat16, jnp.float16, jnp.int32, jnp.uint8, jnp.complex64):
        got = b.jax.jit(lambda x: b.st.all_reduce(x, b.comm))(jnp.ones(5, kind))
        assert got.dtype == kind
        np.testing.assert_array_equal(got, np.full(5, b.n).astype(got.dtype))
    every = b.drawn(4)
    for op, want in (("avg", every.mean(0)), ("max", every.max(0))):
        got = b.st.all_reduce(b.mine(every), b.comm, op)
        np.testing.assert_allclose(got, want, rtol=1e-5)
    refused(
        lambda: b.jax.grad(lambda x: b.st.all_reduce(x, b.comm, "max").sum())(
            b.mine(every)
        ),
        "'max' has no gradient",
    )


@check
def refusals(b):
    """Before anything is sent, in words that say what is wanted."""
    st, comm, jnp = b.st, b.comm, b.jax.numpy
    refused(lambda: st.all_reduce(np.ones(3), comm), "want an array of JAX")
    odd = jnp.ones(b.n + 1)
    refused(lambda: st.reduce_scatter(odd, comm), f"multiple of {b.n}")
    refused(lambda: b.jax.jit(lambda x: st.all_to_all(x, comm))(odd), "multiple of")
    rows = jnp.ones((4, 3))
    for how in (b.jax.vmap, lambda f: b.jax.jit(b.jax.vmap(f))):
        call = how(lambda x: st.all_reduce(x, comm))
        refused(lambda call=call: call(rows), "in vmap: 4 calls of a row each")
    total = st.all_reduce(jnp.ones(2), comm)  # nobody was hurt
    np.testing.assert_array_equal(total, [b.n, b.n])
