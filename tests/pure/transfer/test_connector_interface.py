"""The connector has what vLLM calls, with the parameters by which vLLM passes it."""

import inspect
import json
from pathlib import Path

import pytest

from stretto.errors import LayoutError
from stretto.transfer.connector import Scheduler, Told, Worker
from stretto.transfer.connector.steps import block_ids_of

WANTED = json.loads((Path(__file__).parent / "vllm_connector.json").read_text())
SIDES = {"scheduler": Scheduler, "worker": Worker}
EVERY = [
    (side, name, asked)
    for side in SIDES
    for name, asked in {**WANTED["both"], **WANTED[side]}.items()
]


@pytest.mark.parametrize(("side", "name", "asked"), EVERY)
def test_every_method_takes_what_vllm_passes(side, name, asked):
    """By position and by name; what ours take beside that may be left out."""
    method = getattr(SIDES[side], name)
    given = list(inspect.signature(method).parameters.values())
    if given and given[0].name == "self":
        given = given[1:]
    plain = [p for p in given if p.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [n for n in asked if n != "**"]
    assert named == [p.name for p in plain[: len(named)]]
    assert all(p.default is not inspect.Parameter.empty for p in plain[len(named) :])
    if "**" in asked:
        assert len(plain) < len(given)


@pytest.mark.parametrize("side", SIDES)
def test_every_property_is_there(side):
    """Of both halves, and of one."""
    for name in (*WANTED["properties"]["both"], *WANTED["properties"][side]):
        assert hasattr(SIDES[side], name)


def test_blocks_are_read_as_vllm_gives_them():
    """A list, a tuple of groups, or what has `get_block_ids`."""

    class Blocks:
        def get_block_ids(self):
            return ([4, 2],)

    assert (4, 2) == block_ids_of([4, 2])
    assert (4, 2) == block_ids_of(([4, 2],))
    assert (4, 2) == block_ids_of(Blocks())
    assert () == block_ids_of([])
    with pytest.raises(LayoutError, match="2 groups"):
        block_ids_of(([1], [2]))


def test_what_workers_tell_is_joined():
    """Leases of several engines, and more of one."""
    one = Told(leases={"a": (b"1",), "b": (b"2",)})
    whole = one.aggregate(Told(leases={"b": (b"3",), "c": (b"4",)}))
    assert {"a": (b"1",), "b": (b"2", b"3"), "c": (b"4",)} == whole.leases
