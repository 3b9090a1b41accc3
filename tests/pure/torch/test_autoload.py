"""`import torch` makes the backend known by an entry point: little cost, no risk."""

import os
import subprocess
import sys

import pytest
from tests.checking.installed import ENTRIES, GROUP, search_path

torch = pytest.importorskip("torch")

import stretto  # noqa: E402
import stretto.torch  # noqa: E402

LOOK = (
    "import sys; import torch; import torch.distributed as dist\n"
    "print('STRETTO' in dist.Backend._plugins)\n"
    "print(*(m for m in sys.modules if m.startswith('stretto')))\n"
)
TRAIN = (
    "print(dist.Backend.default_device_backend_map['cuda'])\n"
    "dist.init_process_group(init_method=f'file://{sys.argv[1]}', rank=0, world_size=1)"
    "\nx = torch.ones(3); dist.all_reduce(x); print(type(dist.group.WORLD).__name__)\n"
    "dist.destroy_process_group()\n"
)


@pytest.fixture
def installed(tmp_path):
    """Return how a program is run where stretto, as it lies here, is installed."""

    def run(code, **variables):
        path = {"PYTHONPATH": search_path(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "store")],
            env=os.environ | path | variables,
            capture_output=True,
            text=True,
            check=False,
        )
        assert 0 == done.returncode, done.stderr
        return done.stdout.splitlines(), done.stderr

    return run


def test_the_backend_is_known_without_an_import_and_the_default_on_request(installed):
    """Little of stretto is imported; STRETTO_TORCH_DEFAULT makes it torch's choice."""
    said, _ = installed(LOOK + TRAIN, STRETTO_TORCH_DEFAULT="1")

    known, modules, cuda, kind = said
    want = {"stretto", "stretto._version", "stretto.errors", "stretto.torch"}
    assert "True" == known
    assert want | {"stretto_autoload"} == set(modules.split())
    assert ("stretto", "StrettoGroup") == (cuda, kind)


@pytest.mark.slow
def test_torch_is_told_to_load_nothing(installed):
    """Its own variable is respected."""
    said, _ = installed(LOOK, TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    assert ["False", ""] == said


@pytest.mark.parametrize(
    "there",
    [
        {"stretto/__init__.py": "raise OSError('half of it is there')"},
        {"stretto/__init__.py": "import stretto.errors", "stretto/errors.py": "("},
        {"stretto/__init__.py": "", "stretto/torch/__init__.py": "from . import a"},
    ],
    ids=["broken", "cut", "of two versions"],
)
def test_torch_is_imported_whatever_is_left_of_stretto(monkeypatch, tmp_path, there):
    """What is half installed is logged, and raises nothing."""
    for name, text in there.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in [m for m in sys.modules if m.partition(".")[0] == "stretto"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path)
    module, _, function = ENTRIES[GROUP]["stretto"].partition(":")
    heard = []
    monkeypatch.setattr(
        "logging.Logger.warning", lambda self, text, *args: heard.append(text % args)
    )

    try:
        getattr(__import__(module), function)()
    finally:
        for name in [m for m in sys.modules if m.partition(".")[0] == "stretto"]:
            del sys.modules[name]

    (line,) = heard
    assert 'the backend "stretto" of torch.distributed is not to be had' in line


def test_torchcomms_is_not_disturbed(monkeypatch):
    """With it torch looks backends up elsewhere: nothing is said, nothing imported."""
    import stretto_autoload

    monkeypatch.setenv("TORCH_DISTRIBUTED_USE_TORCHCOMMS", "1")
    monkeypatch.setitem(sys.modules, "stretto.torch", None)  # an import would raise
    monkeypatch.setattr("logging.Logger.warning", lambda *_: pytest.fail("said"))

    stretto_autoload.register()


def test_a_call_makes_it_the_default(monkeypatch):
    """For all devices, or for some; others are answered with those there are."""
    usual = {"cpu": "gloo", "cuda": "nccl", "xpu": "xccl"}
    theirs = torch.distributed.Backend
    monkeypatch.setattr(theirs, "default_device_backend_map", dict(usual))

    stretto.torch.make_default("cuda")
    assert usual | {"cuda": "stretto"} == theirs.default_device_backend_map
    stretto.torch.make_default()
    want = usual | {"cpu": "stretto", "cuda": "stretto"}
    assert want == theirs.default_device_backend_map
    with pytest.raises(stretto.UnknownNameError, match="known: cpu, cuda"):
        stretto.torch.make_default("tpu")
