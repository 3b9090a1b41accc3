"""Say what this machine has, and what is missing."""

from __future__ import annotations

import argparse
import importlib.util
import platform
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata

from stretto import executors, topology
from stretto.cli.output import add_json, print_rows
from stretto.errors import StrettoError
from stretto.fabric import hop
from stretto.runtime.choice import Profile, own
from stretto.topology.detect import cores

_EXTRAS = {
    "numba": "cpu: pip install 'stretto[cpu]'",
    "torch": "torch: pip install torch, then stretto.torch is there",
    "cuda": "cuda13: pip install 'stretto[cuda13]'",
    "scipy": "synth: pip install 'stretto[synth]'",
    "matplotlib": "figures: pip install 'stretto[figures]'",
}
_DISTRIBUTIONS = {"cuda": "cuda-core"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print one row a subject."""
    rows = [
        {"part": part, "subject": subject, "found": found}
        for part, subject, found in _findings()
    ]
    print_rows(args, rows)
    return 0


def _findings() -> Iterator[tuple[str, str, str]]:
    yield "machine", "python", f"{platform.python_version()} on {platform.platform()}"
    yield "machine", "cores", str(cores())
    try:
        yield "machine", "topology", topology.detect().name
    except StrettoError as e:
        yield "machine", "topology", f"unknown: {e}"
    yield "package", "numpy", metadata.version("numpy")
    for module, advice in _EXTRAS.items():
        yield "package", module, _version(module) or f"missing ({advice})"
    profiles = own.texts()
    for name in executors.names():
        yield from _said(f"executor {name}", lambda n: executors.get(n).doctor(), name)
        if said := _profile(name, profiles.get(name)):
            yield f"executor {name}", "profile", said
    for name in hop.names():
        yield from _said(f"carrier {name}", lambda n: hop.get(n).examine(), name)


def _profile(executor: str, text: str | None) -> str:
    """Return by what was measured where calls are chosen; nothing: by nothing."""
    if text is not None:
        return f"yours, of {Profile.parse(text, 'yours').about or 'this machine'}"
    here, tune = topology.here(executor), f"stretto tune --quick --device {executor}"
    shipped = Profile.shipped(executor, here)
    if shipped.machine and here not in ("", *shipped.machine.split(" or ")):
        return f"shipped, of {shipped.machine}; of {here} you get one by `{tune}`"
    return f"shipped: {shipped.about}; yours by `{tune}`" if shipped.about else ""


def _said(
    part: str, ask: Callable[[str], Mapping[str, object]], name: str
) -> Iterator[tuple[str, str, str]]:
    """Yield what a part says of itself, or why it cannot be asked."""
    try:
        found = ask(name)
    except (ImportError, StrettoError, OSError) as e:
        found = {"ready": f"no: {e}"}
    for subject, words in found.items():
        yield part, subject, str(words)


def _version(module: str) -> str:
    if importlib.util.find_spec(module) is None:
        return ""
    try:
        return metadata.version(_DISTRIBUTIONS.get(module, module))
    except metadata.PackageNotFoundError:
        return "there, of unknown version"
