"""Tables and spaces that searches read: one sentence refuses what is wrong in them."""

import random

import pytest

from stretto.errors import CallError, ParseError, StrettoError
from stretto.search.calls import read_calls
from stretto.search.problems._traces import load_trace
from stretto.search.problems.config import ConfigProblem
from stretto.search.problems.prefetch import PrefetchProblem
from stretto.search.spaces import Space, load_space

SPACE = "[knobs.a]\nvalues = [1, 2]\n[knobs.b]\nlow = 1\nhigh = 9\nwhole = true\n"
TABLES = {
    "calls": "trace,span,parent,kind,us\n1,1,,a,5\n1,2,1,b,3\n2,1,,a,5\n",
    "requests": "time,id,size\n1,a,5\n2,b,6\n3,a,5\n4,c,1\n",
    "recorded": "a,b,cost\n1,2,3\n2,3,1\n1,5,5\n",
    "addresses": "address,stream\n64,1\n128,1\n192,2\n256,1\n",
}
"""A table of each kind that is fine."""
SPOILT = {
    "short": lambda text: text + "1\n",
    "long": lambda text: text + "1,2,3,4,5,6,7,8\n",
    "empty": lambda text: "",
    "blank": lambda text: "\n\n",
    "words": lambda text: text + "x,y,z,u,v\n",
    "open": lambda text: text + '1,"2\n',
    "wide": lambda text: text + f"1,{'2' * 200_000},3,4,5\n",
    "digits": lambda text: text + f"{'9' * 5000},{'9' * 5000},{'9' * 5000},4,5\n",
    "nul": lambda text: text + "1,2\0,3,4,5\n",
    "latin": lambda text: (text + "1,2,").encode() + b"\xff\n",
    "infinite": lambda text: text + "1,2,1e999,nan,inf\n",
}
"""What may happen to one."""


def take(kind, path, space):
    """Read a table of a kind."""
    if kind == "calls":
        return read_calls(path)
    if kind == "requests":
        return load_trace(path)
    if kind == "addresses":
        return PrefetchProblem(str(path))
    return ConfigProblem(str(space), recorded=str(path))


def refusal(make, *given):
    """Return why something is refused, in one line; nothing where it is not."""
    try:
        make(*given)
    except StrettoError as e:
        said = str(e)
    else:
        return ""
    assert "\n" not in said
    assert len(said) < 700
    return said


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("kind", TABLES)
def test_a_table_that_is_spoilt_is_refused_by_its_name(tmp_path, kind, spoilt):
    """Or it is read, where what was added means something."""
    space, path = tmp_path / "space.toml", tmp_path / "table.csv"
    space.write_text(SPACE)
    path.write_text(TABLES[kind])
    assert not refusal(take, kind, path, space)
    data = SPOILT[spoilt](TABLES[kind])
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    said = refusal(take, kind, path, space)
    assert not said or str(path) in said
    assert said or spoilt not in ("empty", "blank", "latin", "digits")


NUMBERS = "1", "2.5", "-1e308", "1e308", f"1{'0' * 400}", "inf", "nan", "true", "''"


def take_space(path):
    """Read a space, and draw from it; places and texts are those of what is drawn."""
    space = load_space(path)
    assert isinstance(space, Space)
    draw = random.Random(1)
    for _ in range(5):
        chosen = space.draw(draw)
        space.places(chosen)
        space.spell(chosen)


@pytest.mark.parametrize("low", NUMBERS)
@pytest.mark.parametrize("high", NUMBERS)
@pytest.mark.parametrize("more", ["", "log = true", "whole = true"])
def test_a_space_of_any_numbers_is_refused_or_drawn_from(tmp_path, low, high, more):
    """A space of any numbers is refused or drawn from."""
    path = tmp_path / "space.toml"
    hold = "[must]\nhold = ['a <= 5 or b > 1']\n"
    knob = f"low = {low}\nhigh = {high}\n{more}\n"
    path.write_text(f"[knobs.a]\n{knob}[knobs.b]\nvalues = [{low}, {high}]\n{hold}")
    said = refusal(take_space, path)
    assert not said or str(path) in said or said.startswith("space: ")


@pytest.mark.parametrize("command", [" ", "\t", 'echo "1', "echo '", "\\"])
def test_an_objective_that_is_no_command_is_refused_at_once(tmp_path, command):
    """An objective that is no command is refused at once, and so is a cheap one."""
    path = tmp_path / "space.toml"
    path.write_text(SPACE)
    with pytest.raises(CallError, match="want a command"):
        ConfigProblem(str(path), objective=command)
    with pytest.raises(CallError, match="want a command"):
        ConfigProblem(str(path), objective="echo 1", cheap=command)


def test_a_space_that_is_no_text_is_refused(tmp_path):
    """A space that is no text is refused, and so is one that nests without end."""
    path = tmp_path / "space.toml"
    for data in (b"\xff\xfe", b"[knobs.a]\nvalues = " + b"[" * 20_000):
        path.write_bytes(data)
        with pytest.raises(ParseError, match="space"):
            load_space(path)
