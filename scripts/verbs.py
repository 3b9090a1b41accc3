"""Write the table of verbs in docs/guides/run.md from their one description."""

import inspect
from pathlib import Path

from stretto import Communicator
from stretto.runtime.calls import VERBS

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "run.md"
BEGIN = "<!-- scripts/verbs.py writes this table -->\n"
END = "<!-- until here -->\n"


def call_of(name: str) -> str:
    """Return a call: what must be passed, and the root and axes where there are."""
    said = []
    parameters = inspect.signature(getattr(Communicator, name)).parameters
    for one in tuple(parameters.values())[1:]:
        if one.default is one.empty or one.name in ("x", "counts"):
            said.append(one.name)
        elif one.name in ("op", "root", "split", "concat"):
            said.append(f"{one.name}={one.default!r}".replace("'", '"'))
    return f"`{name}({', '.join(said)})`"


def table() -> str:
    """Return the rows: a call, what it does, and its form for unequal parts."""
    lines = ["| call | what it does | unequal parts |", "| --- | --- | --- |"]
    for name, verb in VERBS.items():
        if verb.unequal:
            continue
        words = inspect.getdoc(getattr(Communicator, name)).partition("\n")[0]
        unequal = call_of(f"{name}_v") if f"{name}_v" in VERBS else ""
        lines.append(f"| {call_of(name)} | {words} | {unequal} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return the page with the table as it should be."""
    before, begin, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE} has lost the marks of the table")
    return "".join((before, begin, table(), end, after))


if __name__ == "__main__":
    PAGE.write_text(page())
