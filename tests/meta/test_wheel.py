"""The wheel carries everything that lies in the source, and nothing else."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build the wheel once."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=120,
    )
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


def test_every_source_file_is_in_the_wheel(wheel):
    """Modules, machines and kernels come along, whatever their suffix."""
    source = ROOT / "src"
    lying = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}

    assert lying == packed
    assert "stretto/py.typed" in packed
    assert "stretto/topology/machines/h200.toml" in packed
    assert "stretto/studio/web/views/topology.js" in packed


def test_the_wheel_carries_its_licence_and_one_dependency(wheel):
    """Whoever installs stretto gets NumPy, the licence, and the command."""
    info = {
        name.rpartition("/")[2]: wheel.read(name).decode()
        for name in wheel.namelist()
        if ".dist-info/" in name
    }
    needed = [
        line
        for line in info["METADATA"].splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]

    assert "Apache License" in info["LICENSE"]
    assert ["Requires-Dist: numpy>=1.26"] == needed
    assert "stretto = stretto.cli:main" in info["entry_points.txt"]
    named = "[torch.backends]\nstretto = stretto_autoload:register"
    assert named in info["entry_points.txt"]
    named = "[vllm.platform_plugins]\nstretto = stretto_autoload:vllm_platform"
    assert named in info["entry_points.txt"]
    named = "[sglang.srt.plugins]\nstretto = stretto_autoload:sglang_hooks"
    assert named in info["entry_points.txt"]
    named = "stretto_deep_ep = stretto_autoload:deep_ep"
    assert 2 == info["entry_points.txt"].count(named)
