"""The compiled part of a group: built here, and tried on a GPU that is pretended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from stretto.torch.native import building, load  # noqa: E402

HERE = Path(__file__).parent


def test_what_cannot_be_compiled_says_why(tmp_path, monkeypatch):
    """No compiler, no headers, a compiler that fails, one that is told to stop."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(building, "_loaded", [])
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert "no C++ compiler" in building.build()
    wrong = tmp_path / "g++"
    wrong.write_text("#!/bin/sh\necho group.cpp:1: error: no such thing >&2\nexit 1\n")
    wrong.chmod(0o755)
    assert building.build() == "group.cpp:1: error: no such thing"
    wrong.write_text("#!/bin/sh\n/bin/sleep 600\n")
    assert building.build(lambda: False) == "cut short"
    monkeypatch.setattr(building.sysconfig, "get_paths", lambda: {"include": "/none"})
    assert "python3-dev" in building.build()
    assert load() is None
    assert not list(tmp_path.glob("cache/torch/*"))


def test_what_is_kept_and_wrong_is_not_loaded(tmp_path, monkeypatch):
    """A file that is cut is made anew; one of another kind is said once."""
    monkeypatch.setenv("STRETTO_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(building, "_loaded", [])
    building.caches.store(building._kept(), b"no library")
    assert load() is None
    building._kept().write_bytes(building._kept().read_bytes()[:-3])
    with pytest.warns(RuntimeWarning, match="its checksum is wrong"):
        assert load() is None
    monkeypatch.setenv(building.SWITCH, "0")
    assert load() is None


def test_precompile_says_what_came_of_it(monkeypatch, capsys):
    """In the row of what it has compiled."""
    from stretto.cli import main, precompile
    from stretto.runtime.calls.precompile import Compiled
    from stretto.torch import native

    made = Compiled(kernels=3, is_whole=True)
    monkeypatch.setattr(precompile, "compile_usual", lambda *_, **__: made)
    for said, want in (("no C++ compiler", "no C++ compiler"), ("", "there")):
        monkeypatch.setattr(native, "build", lambda go_on, said=said: said)
        words = ["precompile", "--ranks", "1", "--arch", "9.0", "--torch", "--json"]
        assert main(words) == 0
        assert json.loads(capsys.readouterr().out)["rows"][0]["torch"] == want


@pytest.mark.skipif(
    torch.backends.cuda.is_built(), reason="this PyTorch has a real GPU's streams"
)
def test_it_does_what_python_does_for_what_is_known(tmp_path):
    """Order, what is held, what is left to Python: see native_case.py."""
    if why := building.missing():
        pytest.skip(why)
    source = tmp_path / "fakes.cpp"
    text = (HERE / "native_fakes.cpp").read_text()
    group = Path(building.__file__).with_name("group.cpp")
    source.write_text(text.replace('"group.cpp"', f'"{group}"'))
    made = tmp_path / "fakes.so"
    assert not building.compile_to(made, source, lambda: True)
    said = subprocess.run(
        [sys.executable, str(HERE / "native_case.py"), str(made)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.count("right") == 8
