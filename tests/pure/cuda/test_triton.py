"""Channels in Triton: the offsets that C has, and kernels that compile where it is."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

import pytest

from stretto.errors import MissingExtraError
from stretto.executors.cuda.codegen.abi import AWAITED, KINDS, MAX_RANKS, PARAMS, RECORD
from stretto.executors.cuda.custom.channels import CHANNEL

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "stretto" / "executors" / "cuda" / "triton.py"
HAS_TRITON = importlib.util.find_spec("triton") is not None


def constants():
    """Return the module's `_NAME = tl.constexpr(value)`, read without Triton."""
    found = {}
    for node in ast.parse(SOURCE.read_text()).body:
        if isinstance(node, ast.Assign):
            (target,) = node.targets
            pairs = (
                zip(target.elts, node.value.elts, strict=True)
                if isinstance(target, ast.Tuple)
                else [(target, node.value)]
            )
            for name, value in pairs:
                if isinstance(value, ast.Call):
                    code = compile(ast.Expression(value.args[0]), "constant", "eval")
                    found[name.id] = eval(code)
    return {k: v for k, v in found.items() if isinstance(v, int)}


def test_triton_knows_the_same_structures_as_c():
    """Offsets and numbers are those of the tables that C is tested against."""
    fields = {k: v[1] for k, v in CHANNEL.fields.items()}
    params = {k: v[1] for k, v in PARAMS.fields.items()}
    got = constants()

    assert got == {
        "_SIZE": CHANNEL.itemsize,
        "_REMOTE": fields["remote"],
        "_INBOX": fields["inbox"],
        "_OUTBOX": fields["outbox"],
        "_COUNTS": fields["counts"],
        "_CALLS": fields["calls"],
        "_HOME": fields["home"],
        "_RANK": fields["rank"],
        "_PEER": fields["peer"],
        "_CONTROL": params["control"],
        "_RECORD": params["record"],
        "_DEADLINE": params["deadline_ns"],
        "_MAX_RANKS": MAX_RANKS,
        "_TIMEOUT": KINDS.index("timeout"),
        "_TOLD": KINDS.index("told"),
        "_SIGNAL": AWAITED.index("a signal"),
        "_PACKET": AWAITED.index("a packet"),
        "_CLAIM": -(1 << 63) | 1 << 48,
    }


def test_the_record_is_written_where_it_is_read():
    """Every field of the record is stored at its own offset."""
    text = SOURCE.read_text()
    by_host = ("leave",)
    fields = [(k, v[1]) for k, v in RECORD.fields.items() if v[1] and k not in by_host]
    stored = [f"record + {at}," for _, at in fields]

    assert [] == [s for s in stored if s not in text]


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
