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

## The fabric: what crosses processes

```text
      World        who is there, in which generation: identities, ranks, one verdict
        |            fabric/world.py decides at the hub, fabric/view.py believes
        |            (fabric/meeting: the hub, its relays, and groups of ranks)
        v
      Peer         one other member as this process sees it; an identity, never a name
        |            (transfer/engine/peer.py, executors/cpu/peers)
        |
        +------>  Region    memory that it may reach: epochs, rights, withdrawal
        |            (fabric/region.py: of a group, alike on every rank;
        |            transfer/regions: of an engine, under leases)
        v
      Channel      an ordered way there: put, signal, records, wait, fault
       /    \\       (fabric/channel: records and bytes, by either; transfer/links: a
      /      \\       stage on it; plans: puts and signals of a hop, no records)
  shared    Carrier   bytes between hosts: tcp, ucx, nixl, or one of your own, which
  memory               says what it can (fabric/hop/carrier.py, examples/own_carrier.py)
```

Beneath them lie one handshake (`fabric/handshake.py`: bytes in, bytes out, fuzzed), one
door for strangers (`fabric/porch.py`), one layer of shared memory (`fabric/memory.py`:
files without a name, mapped), one loop (`fabric/loop.py`: descriptors, times,
wake-ups), one kind of threads for what takes long (`fabric/workers.py`) and one way to
compiled code (`fabric/jit`). Rooms above have none of these of their own; a test says
by which words it would see one (`tests/meta/test_rooms.py`).

Bytes leave a process here, and nowhere else:

- To other hosts: `fabric/hop/tcp` (`sendmsg`, compiled), `fabric/tls.py` if it is asked
  for; `fabric/hop/ucx` and `fabric/hop/nixl` (their libraries do it). And
  `fabric/hop/trips.py`, which measures a bare socket beside them.
- To processes of this host: `fabric/channel/rings.py`, `transfer/copying/compiled.py`
  and `executors/cpu/running/kernels.py` store in memory that both map. The second, and
  `executors/cpu/running/instructions.py` for large messages, also have the kernel copy
  between two processes' own memory (`process_vm_readv`, `process_vm_writev`).
- To other GPUs: kernels that `executors/cuda/codegen` writes, and the copies of
  `executors/cuda/launching/copies.py` and `executors/cuda/transfers/mover.py`.
- Of the meeting: `fabric/wire.py` (frames, with descriptors), `fabric/porch.py`
  (handshakes) and `fabric/meeting/launching/nursery.py` (whom it is to fork, and how
  those ended).
- To the world outside, by HTTP: `studio/serve`, `transfer/stores/objects.py`,
  `search/model/endpoint.py`.

## The walk of `comm.all_reduce(x)`

`calls` and `choice` are rooms of `runtime`.

```text
   calls/methods.py         writes the method: are these very arrays known?
      | calls/known.py        then the launch, and nothing else
      v
   calls/call.py            the road of every other call, one function, in this order:
      |
      | requests/layout.py    do its arrays look like an earlier call's? (known.py then
      |                       launches; arrays/array_readers.py reads them, the session
      |                       says whether peers reach them: asked once)
      | requests/request.py   a verb's description and its arguments: a checked request
      |                       (arrays/operands.py reads arrays; overlap.py, axes.py)
      | runner.py             one thread, the session: what a rank's calls stand on
      | fused.py              the epilogue, where there is one
      | choosing.py           the launch of its kind; else choice: a plan, proved once
      | a launch              see below
      | answer.py             what the caller gets
      v known.py              the next one like it is known
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
first is when these rooms were one folder; before is when the steps of a call were
methods of several classes, which gave it back and forth:

| walk | modules | returns | before | at first |
| --- | --- | --- | --- | --- |
| a known call on CPUs | 0 | 0 | 0 | 0 |
| a new call on CPUs, of a known launch | 10 | 2 | 4 | 18 |
| the first of its kind on CPUs | 21 | 6 | 8 | 41 |
| the first of its kind on GPUs, as launches are recorded | 36 | 12 | 19 | 51 |

A room imports rooms of lower layers, never of its own or above.
Rooms of one layer do not know one another; nor do executors. Users import a room of a
group by its own name, as `stretto.verify`: a thin module at the root stands for it.

| layer | room | what it is | imports |
| --- | --- | --- | --- |
"""
MIDDLE = """

Rooms that are groups, and what lies in them, from the ground:

| room | what it is |
| --- | --- |
"""


def first_line(room: str) -> str:
    """Return the first line of a room's docstring, or nothing when it is not there."""
    for name in (f"{room}/__init__.py", f"{room}.py"):
        path = ROOT / "src" / "stretto" / name
        if path.exists():
            return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
    return ""


def layers_of(identity: str) -> list[list[str]]:
    """Return the layers of a contract, from the top: the names in each."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for contract in config["tool"]["importlinter"]["contracts"]:
        if contract["id"] == identity:
            return [re.findall(r"\w+", layer) for layer in contract["layers"]]
    return []


def page() -> str:
    """Return the text of the page."""
    layers = layers_of("rooms")[1:]  # the first: names that users import
    graph = grimp.build_graph("stretto")
    seen = graph.find_children("stretto")
    rows, inside = [], []
    for height, layer in zip(range(len(layers), 0, -1), layers, strict=True):
        for room in layer:
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
            inside += [
                f"| `{room}/{part}` | {first_line(f'{room}/{part}')} |"
                for rank in reversed(layers_of(room) if room != "executors" else [])
                for part in rank
                if room != "synth"
            ]
    return HEAD + "\n".join(rows) + MIDDLE + "\n".join(inside) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
