"""Parts of a step have torch's names in a recording."""

import os
import subprocess
import sys

from stretto.trace import MARKS, read_all

PROGRAM = """
import torch
from stretto.torch.marks import note_marks
note_marks()
weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    with torch.profiler.record_function("forward"):
        loss = weight.sum()
    loss.backward()
    optimizer.step()
"""


def test_parts_and_steps_are_recorded_and_are_no_calls(tmp_path):
    """Also by a process that has no communicator."""
    environment = {**os.environ, "STRETTO_TRACE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True)
    seen = read_all(tmp_path)
    names = [seen.kinds[kind].collective for kind in seen.calls["kind"]]

    assert 3 == names.count("forward") == names.count("step")
    assert "Optimizer.step#SGD.step" in names
    assert 0 == len(seen.without(MARKS).calls)
