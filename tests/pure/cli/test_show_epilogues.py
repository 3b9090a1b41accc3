"""`stretto show --epilogue`: the kernel that a fused call would run."""

from __future__ import annotations

from pathlib import Path

import pytest

from stretto.cli.targets import find_epilogue
from stretto.compiler.lower import lower
from stretto.compiler.plan import Schedule
from stretto.compiler.verify import verify, verify_plan
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.program import algorithms
from stretto.program.collectives import Operator
from stretto.program.epilogues import Named, ValueForm, resolve

NORM = Path(__file__).parents[3] / "examples" / "fuse_a_norm.py"
INPUTS = ("--input", "weight=row:float32", "--input", "eps=number")


@pytest.mark.parametrize(("rows", "share"), [(2, 4), (None, 0)])
def test_the_kernel_is_the_one_that_a_call_runs(stretto, rows, share):
    """Its rows are divided among blocks where there are fewer of them."""
    status, out, _ = stretto(
        *("show", "all_reduce/two_shot", "--ranks", "2", "--cuda"),
        *("--schedule", "push packets blocks=8", "--dtype", "bfloat16"),
        *("--epilogue", f"{NORM}:add_rms_norm", *INPUTS, "--row", "4096"),
        *(("--rows", str(rows)) if rows else ()),
    )
    named = {
        "residual": Named("residual", "bfloat16", ValueForm.ELEMENT),
        "weight": Named("weight", "float32", ValueForm.ROW),
        "eps": Named("eps", "", ValueForm.SCALAR),
    }
    graph = find_epilogue(str(NORM)).graph
    spec = resolve(graph, named, dtype="bfloat16", row=4096)
    program = algorithms.get("all_reduce/two_shot").build(2)
    schedule = Schedule.parse("push packets blocks=8")
    plan = verify_plan(lower(verify(program), schedule))
    kind = {"dtype": "bfloat16", "op": Operator.SUM, "epilogue": spec}

    assert 0 == status
    assert kernel_of(plan, rank=0, share=share, **kind).text == out


def test_without_a_kernel_the_traced_expressions_are_printed(stretto):
    """After the program; a file's only epilogue needs no name."""
    program = stretto("show", "all_gather/ring", "--ranks", "2")[1]
    status, out, _ = stretto(
        *("show", "all_gather/ring", "--ranks", "2", "--epilogue", str(NORM)), *INPUTS
    )

    assert 0 == status
    assert out.startswith(f"{program}epilogue float32 row=1024 ")
    assert "residual:float32:element weight:float32:row eps:number:scalar" in out
    assert out.endswith("out = v14\nresidual = v5\n")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--epilogue", "none.py:x"], "no such file; want FILE.py:variable"),
        (["--epilogue", "{NORM}:other"], "fuse_a_norm.py has add_rms_norm; want"),
        (["--epilogue", "{NORM}", "--input", "w=row"], "one of residual, weight, eps"),
        (
            ["--epilogue", "{NORM}", "--input", "eps=all"],
            "element, row, column, number",
        ),
        (["--epilogue", "{NORM}", "--input", "eps=row:int8"], "DTYPE one of float32"),
        (["--epilogue", "{NORM}", "--dtype", "int32"], "of int32 elements"),
        (["--epilogue", "{NORM}", "--row", "0"], "--row 0"),
        (["--epilogue", "{NORM}", "--rows", "0"], "--rows 0"),
    ],
)
def test_what_is_no_epilogue_is_told_in_a_line(stretto, words, reason):
    """Status 2, with the names that would do."""
    words = [word.format(NORM=NORM) for word in words]
    status, out, err = stretto("show", "all_reduce/ring", *words)

    assert (2, "") == (status, out)
    assert reason in err


def test_collectives_without_an_epilogue_say_which_have_one(stretto):
    """As the communicator's verbs."""
    status, _, err = stretto("show", "broadcast/flat", "--epilogue", str(NORM))

    assert 2 == status
    assert "broadcast takes none; all_reduce, all_gather, reduce_scatter do" in err
