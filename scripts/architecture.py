"""Write docs/architecture.md from the rooms' first lines and the import contract."""

import ast
import re
import tomllib
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
HEAD = """\
# Architecture

*Written by `scripts/architecture.py` from the rooms' own first lines and the import
contract in `pyproject.toml`; a test keeps it in step.*

```text
   lang (written)    algorithms (shipped)    synth (found)
            \\               |               /
                      ir.Program            what moves where: frozen, printed, parsed
                            |
                         verify             Verified[Program]
                            |
                          lower             under a Schedule
                            |
                        plan.Plan           who does what when: every signal and wait
            /               |               \\
       executors.sim   executors.cpu   executors.cuda
            \\               |               /
                         choice             which plan: pins, profiles, rules
                            |
       meeting ------->   calls             from `comm.all_reduce(x)` to a launch
   (who is there)
```

## The walk of `comm.all_reduce(x)`

```text
   calls/requests/verb.py   makes the method: are these very arrays known?
      | calls/known.py        then the launch, and nothing else
      v
   calls/requests/layout.py do its arrays look like an earlier call's? (known.py then
      |                       launches; arrays/array_readers.py reads them, the session
      |                       says whether peers reach them: asked once)
      v
   calls/requests/request.py the verb's description and the arguments: a checked request
      |                       (arrays/operands.py reads arrays; overlap.py, axes.py)
      v
   calls/runner.py          one thread; the session; afterwards the call is known
      |
   calls/choosing.py        the launch of its key; else choice: which plan, proved once
      |
      +--> executors/cpu/session.py               binds the plan to this rank's memory
      |      | running/encode.py                    a table of words
      |      | running/interpreter.py               a closure: one call of compiled code
      |
      +--> executors/cuda/launching/prepare.py    the parts of a call: one kernel, or
             |                                      kernels and copies (copies.py)
             | bind.py, flags/regions.py            how each lies in staging
             | codegen, launching/kernels.py        written for what it is; loaded once
             | launching/introduce.py               what faults and recordings call it
             v launching/launch.py                  packed for its arrays and flags
                                                    (flags/flagsets.py), and launched
```

Modules of these rooms that a walk enters, and how often it returns to one that it has
left, counted where functions are entered (`tests/walks.py`; codegen is one place). At
first is when these rooms were one folder; before is when what had been read of arrays,
the names of calls and the flags of a stream were asked for again on the way:

| walk | modules | returns | before | at first |
| --- | --- | --- | --- | --- |
| a known call on CPUs | 1 | 0 | 0 | 0 |
| a new call on CPUs, of a known launch | 10 | 4 | 7 | 18 |
| the first of its kind on CPUs | 21 | 8 | 13 | 41 |
| the first of its kind on GPUs, as launches are recorded | 35 | 19 | 36 | 51 |

A room imports rooms of lower layers, never of its own or above.
Rooms of one layer do not know one another; nor do executors.

| layer | room | what it is | imports |
| --- | --- | --- | --- |
"""


def first_line(room: str) -> str:
    """Return the first line of a room's docstring, or nothing when it is not there."""
    for name in (f"{room}/__init__.py", f"{room}.py"):
        path = ROOT / "src" / "stretto" / name
        if path.exists():
            return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    return ""


def page() -> str:
    """Return the text of the page."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = config["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["id"] == "rooms")
    graph = grimp.build_graph("stretto")
    seen = graph.find_children("stretto")
    rows = []
    for height, layer in zip(range(len(layers), 0, -1), layers, strict=True):
        for room in re.findall(r"\w+", layer):
            if not (about := first_line(room)):
                continue
            below = sorted(
                other.rpartition(".")[2]
                for other in seen - {f"stretto.{room}", "stretto._version"}
                if graph.direct_import_exists(
                    importer=f"stretto.{room}", imported=other, as_packages=True
                )
            )
            uses = ", ".join(f"`{name}`" for name in below)
            rows.append(f"| {height} | `{room}` | {about} | {uses} |")
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
