"""What notebooks show of programs, plans, machines and results."""

import xml.etree.ElementTree as ET

import pytest

from stretto import topology
from stretto.bench import BenchTask, document_of
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.program import algorithms


def test_a_program_is_its_picture():
    """Proved, it says so; one too large to draw is its first lines."""
    program = algorithms.get("all_reduce/ring").build(4)
    large = algorithms.get("all_reduce/ring").build(64)

    assert "all_reduce/ring" in ET.fromstring(program._repr_html_())[0].text
    assert verify(program)._repr_html_().startswith("<p>proved:</p><svg ")
    assert large._repr_html_().startswith(f"<p>{large.summary}</p><pre>")
    assert large._repr_html_().count("\n") == 200


def test_a_plan_is_its_text():
    """Escaped, as it has arrows."""
    program = verify(algorithms.get("all_reduce/two_shot").build(2))
    plan = verify_plan(lower(program, Schedule()), program)
    shown = plan.value._repr_html_()

    assert "&lt;-" in shown
    assert ET.fromstring(f"<div>{shown}</div>")[1].text.startswith("plan all_reduce")


@pytest.mark.parametrize("name", ["dgx1", "h200x4", "dgx_h100x4"])
def test_a_machine_is_its_picture(name):
    """The same as `topology.draw` gives."""
    machine = topology.load(name)
    assert topology.draw(machine) == machine._repr_svg_()
    ET.fromstring(machine._repr_svg_())


def test_a_result_is_a_table_of_its_rows():
    """What nobody knows is no number; names cannot be tags."""
    row = {"test": "all_reduce", "nbytes": 1 << 20, "contender": "<b>", "ok": False}
    row |= {"p50_us": 12.3456, "busbw_gbps": None, "ratio": None}
    found = {"rows": [row], "limits": {}, "missing": {}}
    task = BenchTask(tests=("all_reduce",), sizes=(1 << 20,), num_ranks=2)
    document = document_of(task, found, ["stretto"])
    table = ET.fromstring(f"<div>{document._repr_html_()}</div>")[1]

    assert ["all_reduce", "1M", "<b>", "12.35", "-", "-"] == [c.text for c in table[1]]
