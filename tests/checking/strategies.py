"""Hypothesis strategies: sizes, types and programs to hold a property against.

Hypothesis is imported when a strategy is asked for: only tests need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stretto.errors import MissingExtraError
from stretto.program import collectives
from stretto.program.collectives import Operator, Shape
from stretto.testing.oracle import pairings

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__ = ["counts", "element_counts", "numbers_of_ranks", "types_and_operators"]


def _strategies() -> Any:
    try:
        from hypothesis import strategies
    except ModuleNotFoundError as e:
        raise MissingExtraError(
            "tests.checking.strategies needs Hypothesis: pip install hypothesis"
        ) from e
    return strategies


def numbers_of_ranks(most: int = 9) -> SearchStrategy[int]:
    """Return numbers of ranks, from one."""
    found: SearchStrategy[int] = _strategies().integers(1, most)
    return found


def element_counts(most: int = 200) -> SearchStrategy[int]:
    """Return numbers of elements, zero, one and primes among them."""
    st = _strategies()
    few = st.sampled_from([n for n in (0, 1, 2, 3, 5, 7, 17, 64, 127) if n <= most])
    found: SearchStrategy[int] = st.one_of(few, st.integers(0, most))
    return found


def counts(
    collective: str, shape: Shape, *, equal: bool = False, most: int = 64
) -> SearchStrategy[tuple[int, ...]]:
    """Return the counts of one call: of every part, alike or not."""
    st = _strategies()
    parts = collectives.get(collective).num_parts(shape)
    one = element_counts(most)
    found: SearchStrategy[tuple[int, ...]] = (
        one.map(lambda n: (n,) * parts) if equal else st.tuples(*[one] * parts)
    )
    return found


def types_and_operators() -> SearchStrategy[tuple[str, Operator]]:
    """Return an element type with an operator that makes sense for it."""
    found: SearchStrategy[tuple[str, Operator]] = _strategies().sampled_from(pairings())
    return found
