"""Record what vLLM asks of a KV connector: `python scripts/vllm_interface.py VERSION`.

It reads the source of an installed vLLM, or of the folder that is given second, and
writes tests/pure/transfer/vllm_connector.json: names and parameters, nothing else.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

BASE = "distributed/kv_transfer/kv_connector/v1/base.py"
CLASSES = ("KVConnectorBase_V1", "SupportsHMA")
INTO = Path(__file__).parents[1] / "tests" / "pure" / "transfer" / "vllm_connector.json"


def find() -> Path | None:
    """Return the folder of an installed vLLM, without importing it."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


def read(folder: Path) -> dict[str, Any]:
    """Return methods with their parameters, and properties, by name."""
    text = (folder / BASE).read_text()
    methods: dict[str, list[str]] = {}
    properties: list[str] = []
    for made in ast.parse(text).body:
        if not isinstance(made, ast.ClassDef) or made.name not in CLASSES:
            continue
        for one in made.body:
            if not isinstance(one, ast.FunctionDef) or one.name.startswith("_"):
                continue
            marks = {d.id for d in one.decorator_list if isinstance(d, ast.Name)}
            if "property" in marks:
                properties.append(one.name)
                continue
            given = [arg.arg for arg in one.args.args[1:]]
            methods[one.name] = [*given, *(["**"] if one.args.kwarg else [])]
    return {"methods": methods, "properties": sorted(properties)}


def main() -> None:
    """Write it."""
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else find()
    if folder is None or len(sys.argv) < 2:
        sys.exit("usage: vllm_interface.py VERSION [FOLDER OF vllm]")
    found = {
        "from": f"vLLM {sys.argv[1]}, {BASE}: {', '.join(CLASSES)}",
        **read(folder),
    }
    INTO.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
