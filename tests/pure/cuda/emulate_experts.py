"""Kernels of experts on this CPU: what their tests share."""

import numpy as np
from tests.host.experts.oracle import TYPES, Case

from stretto.experts.geometry import Geometry

SHARED = """
#define STRETTO_SHARED(type, name) type& name = of_this_block<type>()
inline unsigned atomicAdd(unsigned* p, unsigned v) {
  return __atomic_fetch_add(p, v, __ATOMIC_RELAXED);
}
inline unsigned atomicOr(unsigned* p, unsigned v) {
  return __atomic_fetch_or(p, v, __ATOMIC_RELAXED);
}
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline void atomicMin(unsigned* p, unsigned v) {
  unsigned was = *p;
  while (v < was && !__atomic_compare_exchange_n(p, &was, v, false, __ATOMIC_RELAXED,
                                                 __ATOMIC_RELAXED)) {}
}
"""
ENTRY = """
extern "C" void dispatch(const stretto::DispatchCall* of, unsigned ranks,
                         unsigned grid, unsigned threads, unsigned absent) {
  launch_ranks(stretto_dispatch, of, ranks, grid, threads, absent);
}
extern "C" void combine(const stretto::CombineCall* of, unsigned ranks,
                        unsigned grid, unsigned threads, unsigned absent) {
  launch_ranks(stretto_combine, of, ranks, grid, threads, absent);
}
"""


def geometry(n, **given):
    """Return a small geometry."""
    small = {"num_experts": 5, "top_k": 3, "hidden": 128, "max_tokens": 9,
             "dtype": "float32", "layout": "expert", "quantise": None, "align": 1,
             "order": "rank"}  # fmt: skip
    return Geometry.of(n, given.pop("placement", None), **{**small, **given})


def random_case(g, rng, tokens):
    """Return a routing of so many tokens a rank."""
    kind = TYPES[g.dtype]
    ids = [rng.integers(-1, g.num_experts, (t, g.top_k)) for t in tokens]
    xs = [(rng.standard_normal((t, g.hidden)) * 9).astype(kind) for t in tokens]
    weights = [rng.random((t, g.top_k)).astype(np.float32) for t in tokens]
    return Case(xs, ids, weights, g.owner, g.layout, g.align, g.max_tokens, g.quantise)
