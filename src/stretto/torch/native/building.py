"""How `group.cpp` is compiled, kept and loaded; without it a group is slower, no more.

PyTorch brings its headers, and its users have a compiler: Triton and Inductor want one.
It takes half a minute, so no program waits for it: `stretto precompile` does it, by
hand or beside the first program, and groups that are made later have it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from stretto import caches
from stretto.torch.fallback import say_once

SWITCH = "STRETTO_TORCH_NATIVE"
"""0: no group has it."""
_SOURCE = Path(__file__).with_name("group.cpp")
_FLAGS = ("-O1", "-std=c++20", "-shared", "-fPIC", "-w")
_LIBRARIES = ("-ltorch_python", "-ltorch", "-ltorch_cpu", "-lc10")
_loaded: list[Any] = []


def build(go_on: Callable[[], bool] = lambda: True) -> str:
    """Compile it, unless it is there; return why it is not there afterwards."""
    path = _kept()
    if path.exists():
        return ""
    if why := missing():
        return why
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "group.so")
        if why := compile_to(made, _SOURCE, go_on):
            return why
        data = made.read_bytes()
    try:
        _module(data)
    except ImportError as e:
        return f"it was compiled and cannot be loaded: {e}"
    caches.store(path, data)
    return "" if path.exists() else f"{path} cannot be written"


def compile_to(made: Path, source: Path, go_on: Callable[[], bool]) -> str:
    """Compile a module of PyTorch's; return what the compiler says if it cannot."""
    said = made.with_suffix(".said")
    if _run(_command(made, source), said, go_on):
        return ""
    lines = said.read_text(errors="replace").splitlines()
    return next((x for x in lines if "error" in x), "".join(lines[:1]) or "cut short")


def init(group: Any, rank: int, size: int) -> Any:
    """Be ProcessGroup's `__init__`; return what begins a sum that is known, or None."""
    made = load()
    if made is None:
        dist.ProcessGroup.__init__(group, rank, size)
        return None
    made.init(group, rank, size)
    return made.begin


def load() -> Any:
    """Return the compiled module, or None where it is not there (yet)."""
    if os.environ.get(SWITCH) == "0":
        return None
    if _loaded:
        return _loaded[0]
    data = caches.load(_kept())
    if data is None:
        return None
    try:
        _loaded.append(_module(data))
    except (ImportError, OSError) as e:
        say_once("native", f"what was compiled of a group cannot be loaded: {e}")
        return None
    return _loaded[0]


def _kept() -> Path:
    """Return where it is kept: for this source, PyTorch and Python, and no other."""
    about = torch.__version__, torch.version.git_version, sys.version, *_FLAGS
    key = hashlib.sha256(repr(about).encode() + _SOURCE.read_bytes())
    return caches.folder("torch") / f"group-{key.hexdigest()[:20]}"


def _compiler() -> str:
    """Return what compiles: $CXX, or the first that is there; empty: none is."""
    words = (os.environ.get("CXX"), "g++", "c++", "clang++")
    return next((found for w in words if w and (found := shutil.which(w))), "")


def missing() -> str:
    """Return why it cannot be compiled here, or nothing."""
    if sys.platform != "linux":
        return f"it is not tried on {sys.platform}"
    if not _compiler():
        return "no C++ compiler: want g++ or clang++, or its path in CXX"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    if not header.exists():
        return f"no {header}: want Python's headers (python3-dev)"
    return ""


def _command(made: Path, source: Path) -> list[str]:
    home = Path(torch.__file__).parent
    includes = (
        home / "include",
        home / "include/torch/csrc/api/include",
        Path(sysconfig.get_paths()["include"]),
    )
    return [
        *(_compiler(), *_FLAGS, str(source), "-o", str(made)),
        *(f"-I{one}" for one in includes),
        *(f"-L{home / 'lib'}", *_LIBRARIES),
    ]


def _run(command: list[str], said: Path, go_on: Callable[[], bool]) -> bool:
    """Return whether a command ended well; what it says is in a file."""
    with caches.private(said) as file:
        running = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,  # a compiler starts others, which end with it
        )
        try:
            while running.poll() is None and go_on():
                time.sleep(0.1)
        finally:
            if running.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                running.wait()
    return running.returncode == 0


def _module(data: bytes) -> Any:
    """Return the module that is in these bytes: what was checked is what is loaded.

    Their descriptor stays open: libraries are known by name, and the next to have its
    number would be taken for this one.
    """
    handle = os.memfd_create("stretto-torch-group", os.MFD_CLOEXEC)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(handle, left) :]
        place = f"/proc/self/fd/{handle}"
        loader = importlib.machinery.ExtensionFileLoader("group", place)
        spec = importlib.util.spec_from_loader("group", loader)
        if spec is None:
            raise ImportError(f"no module in {place}")
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except BaseException:
        os.close(handle)
        raise
    return module
