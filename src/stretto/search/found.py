"""Files of what was found: the policy, where it comes from, how it does elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stretto._version import __version__
from stretto.errors import CallError, ParseError, StrettoError, why_unread
from stretto.search.evolve import PolicyProblem, Searched
from stretto.search.language import Policy, as_bpf, as_c, code_of, evaluate
from stretto.search.problems import kind_of
from stretto.topology import Reader
from stretto.topology.traffic import Congestion

__all__ = ["FoundPolicy", "load", "spell"]

_MOST_NBYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundPolicy:
    """A policy that was searched, as programs use it."""

    name: str
    problem: str
    text: str
    kind: type[PolicyProblem]

    @property
    def policy(self) -> Policy:
        """Return its terms."""
        return self.kind.form.parse(self.text)

    def value(self, part: str = "score", **features: float) -> float:
        """Return what a part of it says of some features: one number each."""
        names = self.kind.form.features
        if {*names} != {*features}:
            raise CallError(f"{self.problem}: want the features {', '.join(names)}")
        row = np.array([[float(features[name]) for name in names]])
        return float(evaluate(code_of(self.policy[part], names), row)[0])

    def as_c(self, *, kernel: bool = False) -> str:
        """Return its parts as C functions: of doubles, or for a `kernel`'s BPF."""
        spell = as_bpf if kernel else as_c
        names = self.kind.form.features
        return "\n".join(
            spell(term, names, name=name, head=not i)
            for i, (name, term) in enumerate(self.policy.parts)
        )

    def congestion(self) -> Congestion:
        """Return it as a congestion control for the packet engine."""
        if self.problem != "cc":
            raise CallError(f"a policy of {self.problem}: want one of cc")
        from stretto.search.problems._steering import steered

        return steered(self.policy["score"], name=self.name)


def load(path: str | Path) -> FoundPolicy:
    """Read what `stretto search -o` wrote; ParseError says what is wrong where."""
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_NBYTES:
            raise ParseError(f"{file}: want at most {_MOST_NBYTES >> 20} MiB")
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise ParseError(f"{file}: {why_unread(e)}") from None
    top = Reader.of(text, where=str(file), refusal=ParseError)
    name = top.text("problem")
    kind = kind_of(name)
    if not issubclass(kind, PolicyProblem):
        raise ParseError(
            f"{file}: problem = {name!r}: want one of policies; weaves are read by "
            "stretto.torch.woven"
        )
    found = FoundPolicy(file.stem, name, top.text("found"), kind)
    try:
        found.policy  # noqa: B018 - read now, not when it is used
    except StrettoError as e:
        raise ParseError(f"{file}: found: {e}") from None
    return found


def spell(name: str, found: Searched, *, seed: int, extra: Mapping[str, Any]) -> str:
    """Return what was found as TOML; `extra` is what the problem adds to it."""
    plain = {k: v for k, v in extra.items() if not isinstance(v, list)}
    lines = [f"{key} = {_value(value)}" for key, value in
             {"problem": name, "found": found.text, **plain}.items()]  # fmt: skip
    lines += ["", "[from]"]
    origin = {"stretto": __version__, "seed": seed, "evals": found.evals,
              "to_best": found.to_best, "cost": found.verdict.cost}  # fmt: skip
    lines += [f"{key} = {_value(value)}" for key, value in origin.items()]
    if found.held_out:
        lines += ["", "[held_out]", f"found = {_value(found.held_out)}"]
        lines += [f"first = {_value(found.first)}"]
    for key, rows in extra.items():
        for row in rows if isinstance(rows, list) else ():
            lines += ["", f"[[{key}]]"]
            lines += [f"{k} = {_value(v)}" for k, v in row.items()]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = (f"{json.dumps(k)} = {_value(v)}" for k, v in value.items())
        return f"{{ {', '.join(inside)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    return json.dumps(value) if isinstance(value, str) else repr(value)
