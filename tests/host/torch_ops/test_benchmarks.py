"""The benchmarks of stretto.torch run on any machine, small and on the CPU."""

import json
import os
from pathlib import Path

import pytest
from tests.host import warm
from tests.nightly import at_night

pytest.importorskip("torch")

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]
DECODE = "--shape tiny --batches 2 --prefill 8 --context 8 --repeats 1"
MATMUL = "--size 16 --tokens 8 --repeats 1"
AT_ONCE = {"gloo", "stretto", "stretto by size", "at once, whole"}
OWN = {"reduce_scatter": {"at once, ring"}}
"""Of matmuls: what both have, and one beside."""


@pytest.mark.parametrize(
    ("name", "words", "variants", "rows"),
    [
        at_night("torch_decode", DECODE, {"gloo", "stretto", "stretto+fused"}, 2),
        ("torch_matmul", MATMUL, AT_ONCE, 2),
    ],
)
def test_a_benchmark_has_a_row_of_every_variant(tmp_path, name, words, variants, rows):
    """All variants are right, are measured, and stand in both files."""
    program = ROOT / "benchmarks" / f"{name}.py"
    done = warm.run(
        [program, "--device=cpu", "--out", tmp_path, *words.split()],
        env=dict(os.environ) | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    said = json.loads(next(tmp_path.glob("*.json")).read_text())
    assert rows == len(said["rows"])
    for row in said["rows"]:
        assert variants | OWN.get(row["kind"], set()) == set(row["us"])
    assert not any(row["failed"] for row in said["rows"])
    for error in said.get("errors", {}).values():
        assert error["relative"] < 0.02
    assert all(name in next(tmp_path.glob("*.md")).read_text() for name in variants)
