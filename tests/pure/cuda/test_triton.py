"""Channels in Triton: the offsets that C has, and kernels that compile where it is."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

from stretto.errors import MissingExtraError
from stretto.executors.cuda.words import RECORD

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "stretto" / "executors" / "cuda" / "triton.py"
HAS_TRITON = importlib.util.find_spec("triton") is not None


def test_the_record_is_written_where_it_is_read():
    """Every field of the record is stored once, and by its name."""
    text = SOURCE.read_text()
    fields = [name for name in RECORD.names if name not in ("state", "leave")]
    pairs = re.findall(r"^(_.*?) = _at\(\s*RECORD, \"(.*?)\"", text, re.MULTILINE)
    names = [n.strip() for left, _ in pairs for n in left.split(",")]

    assert fields == [field for _, right in pairs for field in right.split()]
    assert names == re.findall(r"_store(?:_int)?\(record \+ (\w+),", text)


@pytest.mark.skipif(HAS_TRITON, reason="triton is installed")
def test_without_triton_the_module_says_what_to_install():
    """It comes with torch for GPUs, and is not an extra of ours."""
    sys.modules.pop("stretto.executors.cuda.triton", None)
    with pytest.raises(MissingExtraError, match="pip install triton"):
        importlib.import_module("stretto.executors.cuda.triton")


@pytest.mark.skipif(not HAS_TRITON, reason="triton is not installed")
def test_the_example_in_triton_compiles():
    """For Hopper, without a GPU."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    path = ROOT / "examples" / "gpu" / "triton_all_reduce.py"
    spec = importlib.util.spec_from_file_location("triton_all_reduce", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["triton_all_reduce"] = module
    spec.loader.exec_module(module)
    kinds = {"x": "*fp32", "out": "*fp32", "table": "i64", "count": "i32"}
    kinds |= {"room": "i32", "RANK": "constexpr", "RANKS": "constexpr"}
    source = ASTSource(
        fn=module.all_reduce,
        signature=kinds | {"BLOCK": "constexpr"},
        constexprs={"RANK": 1, "RANKS": 4, "BLOCK": module.BLOCK},
    )
    target = GPUTarget("cuda", 90, 32)
    made = triton.compile(source, target=target, options={"num_warps": module.WARPS})

    assert made.asm["cubin"]
