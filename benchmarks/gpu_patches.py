"""Headers as they are, but for one thing: what that thing costs.

A patch is text for text in the headers, so that the headers themselves stay free of
switches. Each asks one question; docs/notes/cuda-tuning.md says what was expected.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from unittest import mock

__all__ = ["PATCHES", "applied"]

Edit = tuple[str, str, str]


def _swap(header: str, old: str, new: str) -> Edit:
    return header, old, new


def _drop(header: str, old: str) -> Edit:
    return header, old, ""


def _after(header: str, old: str, *lines: str) -> Edit:
    return header, old, old + "".join(f"  {line}\n" for line in lines)


def _before(header: str, old: str, *lines: str) -> Edit:
    return header, old, "".join(f"  {line}\n" for line in lines) + old


_NEXT = "  let_next_begin();\n"
_LANE = "  Lane<C> lane(p, block);\n"
_PATIENT = "    if (!lane.may_wait(patience)) {\n"
_MISSING = "    if (!(taken & 1) && all.head.seen(*parts) == 0) "
_AGAIN = _MISSING + "*parts = all.head.peek(cell);\n"
_SEALED = "    const Vec sealed = keyed(v);\n"
_ESCAPES = "    return least_word(sealed);\n"
_TO_PEER = "    store_relaxed(reinterpret_cast<Vec*>(base + lane"

_SEEN = "seen_parts<ROUND, DEPTH, Lane>"
_LOOP = f"  while (lane.ok && {_SEEN}(all, v, taken) == 0) {{\n"
_AGAIN_ALL = "    peek_again<ROUND, DEPTH, Lane>(all, v, taken);\n"

PATCHES: dict[str, list[Edit]] = {
    "base": [],
    # Does the next launch begin early (griddepcontrol)? After the first data, at exit?
    "env:STRETTO_CUDA_EARLY=0": [],
    "early at exit": [_drop("stretto.cuh", _NEXT)],
    "early at once": [
        _drop("stretto.cuh", _NEXT),
        _before("stretto.cuh", _LANE, "let_next_begin();"),
    ],
    # What do the clerk's words cost?
    "no roll call": [
        _swap("clerk.cuh", "launch = tell_peers<C>(p, lane);", "launch = 1;"),
        _swap("clerk.cuh", "hear_peers<C>(p, lane, launch, epoch);", "(void)launch;"),
    ],
    "sign off last": [
        _drop("stretto.cuh", "  sign_off<Lane::C::threads>();\n"),
        _before("stretto.cuh", "  lane.explain();\n", "sign_off<C::threads>();"),
    ],
    # Do polls stand in the way of what they wait for?
    "poll one": [
        _before(
            "operands.cuh",
            _AGAIN,
            _MISSING.strip() + " {",
            "    *parts = all.head.peek(cell);",
            "    return;",
            "  }",
        )
    ],
    "pause 20": [_before("await.cuh", _PATIENT, 'asm volatile("nanosleep.u32 20;");')],
    # Are two polls in flight, in turns, sooner to see?
    "two polls": [
        _before(
            "await.cuh",
            _LOOP,
            "constexpr u32 many = DEPTH * sources_of<P...>;",
            "Vec other[many];",
            "for (u32 k = 0; k < many; ++k) other[k] = v[k];",
            "peek_again<ROUND, DEPTH, Lane>(all, other, taken);",
        ),
        _after(
            "await.cuh",
            _LOOP + _AGAIN_ALL,
            f"  if ({_SEEN}(all, other, taken) != 0) {{",
            "    for (u32 k = 0; k < many; ++k) v[k] = other[k];",
            "    break;",
            "  }",
            "  peek_again<ROUND, DEPTH, Lane>(all, other, taken);",
        ),
    ],
    # Is it worth computing addresses before the kernel before us has ended?
    "enter first": [_after("stretto.cuh", _LANE, "lane.enter();")],
    # What do arbitrary bit patterns cost? (Right for nearly all data, not for all.)
    "no escape": [_swap("packet.cuh", _ESCAPES, "    return SEEN;\n")],
    "no key": [
        _swap("packet.cuh", _SEALED, "    const Vec sealed = v;\n"),
        _swap("packet.cuh", _ESCAPES, "    return SEEN;\n"),
        _swap("packet.cuh", "{ return keyed(v); }", "{ return v; }"),
    ],
    # Are weak stores to peers merged better than relaxed ones?
    "weak stores": [
        _swap("packet.cuh", _TO_PEER, _TO_PEER.replace("relaxed", "plain", 1))
    ],
}
"""Patches by name; `env:NAME=VALUE` changes the environment instead."""


@contextlib.contextmanager
def applied(name: str) -> Iterator[None]:
    """Generate and compile with the patched headers; kernels are marked by its name."""
    from stretto.executors.cuda.codegen import compile as compiler
    from stretto.executors.cuda.codegen import generate as generator

    if name in ("", "base"):
        yield
        return
    if name.startswith("env:"):
        key, _, value = name.removeprefix("env:").partition("=")
        changes = {key: value}
    else:
        changes = {}
    texts = dict(compiler.headers())
    for header, old, new in PATCHES[name]:
        if old not in texts[header]:
            raise ValueError(f"patch {name!r}: {header} has no {old!r}")
        texts[header] = texts[header].replace(old, new)
    plain = generator.generate

    def marked(*args: object, **kwargs: object) -> object:
        kernel = plain(*args, **kwargs)  # type: ignore[arg-type]
        return dataclasses.replace(kernel, text=f"// {name}\n{kernel.text}")

    with (
        mock.patch.object(compiler, "headers", return_value=texts),
        mock.patch.object(generator, "generate", marked),
        mock.patch.dict(os.environ, changes),
    ):
        yield
