"""Record what serving engines ask of communicators, beside what was recorded before.

    python scripts/engine_interfaces.py vllm 0.33.0 FOLDER
    python scripts/engine_interfaces.py sglang 0.5.23 FOLDER

FOLDER holds the package's own (`vllm/`, `sglang/`). Of the engine's classes the
methods that ours have are written to tests/pure/torch_ops/signatures.json: names,
parameters and defaults, nothing else.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

INTO = Path(__file__).parents[1] / "tests" / "pure" / "torch_ops" / "signatures.json"
OURS = "stretto.torch.serving"
READ = {
    "vllm": [
        (f"{OURS}.vllm.StrettoDeviceCommunicator",
         "vllm/distributed/device_communicators/base_device_communicator.py",
         "DeviceCommunicatorBase"),
        (f"{OURS}.vllm.CustomAllreduce",
         "vllm/distributed/device_communicators/custom_all_reduce.py",
         "CustomAllreduce"),
        (f"{OURS}.vllm_engine.OverCuda",
         "vllm/distributed/device_communicators/cuda_communicator.py",
         "CudaCommunicator"),
    ],
    "sglang": [
        (f"{OURS}.sglang.CustomAllReduceV2",
         "sglang/srt/distributed/device_communicators/custom_all_reduce_v2.py",
         "CustomAllReduceV2"),
    ],
}  # fmt: skip


def signature(made: ast.FunctionDef) -> str:
    """Return parameters and defaults; None for a default that is computed."""
    given = made.args
    for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
        one.annotation = None

    def plain(value: ast.expr | None) -> ast.expr | None:
        names = any(isinstance(n, ast.Name) for n in ast.walk(value)) if value else 0
        return ast.Constant(None) if names else value

    given.defaults = [plain(d) or ast.Constant(None) for d in given.defaults]
    given.kw_defaults = [plain(d) for d in given.kw_defaults]
    return f"({ast.unparse(given)})"


def methods(path: Path, name: str) -> dict[str, str]:
    """Return the signatures of a class by the names of its methods."""
    for made in ast.parse(path.read_text()).body:
        if isinstance(made, ast.ClassDef) and made.name == name:
            own = [m for m in made.body if isinstance(m, ast.FunctionDef)]
            return {m.name: signature(m) for m in own}
    sys.exit(f"{path}: there is no class {name}; see where the engine has it now")


def ours(path: str) -> set[str]:
    """Return the methods of a class of ours, without importing it."""
    module, _, name = path.rpartition(".")
    file = INTO.parents[3] / "src" / Path(*module.split(".")).with_suffix(".py")
    found: set[str] = {"__init__"}
    names = [name, *({"PeerAllReduce"} if name.startswith("Custom") else ())]
    for source in (file, file.with_name("joining.py")):
        for made in ast.parse(source.read_text()).body:
            if isinstance(made, ast.ClassDef) and made.name in names:
                found |= {m.name for m in made.body if isinstance(m, ast.FunctionDef)}
    return {n for n in found if n == "__init__" or not n.startswith("_")}


def main() -> None:
    """Write them."""
    if len(sys.argv) != 4 or sys.argv[1] not in READ:
        sys.exit(f"usage: engine_interfaces.py {'|'.join(READ)} VERSION FOLDER")
    engine, version, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    recorded: dict[str, Any] = json.loads(INTO.read_text())
    for path, file, name in READ[engine]:
        entry = recorded["classes"].setdefault(
            path, {"source": f"{engine} {file}, {name}", "commits": [], "methods": {}}
        )
        entry.setdefault("releases", [])
        if f"{engine} {version}" not in entry["releases"]:
            entry["releases"].append(f"{engine} {version}")
        entry.setdefault("attributes", [])
        for method, text in methods(folder / file, name).items():
            if method in ours(path):
                texts = entry["methods"].setdefault(method, [])
                if text not in texts:
                    texts.append(text)
    INTO.write_text(json.dumps(recorded, indent=1) + "\n")


if __name__ == "__main__":
    main()
