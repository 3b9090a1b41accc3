"""The loops that touch data: one for every (type, operator, number of operands).

A kernel is `void kernel(int64 *operands, int64 nbytes)`: operands are the addresses of
the destinations, then of the sources. All sources of a vector are loaded before any
destination of it is stored, so a destination may be one of the sources. Addresses need
no alignment. A streaming kernel writes some destinations past the caches: results too
large for them, and what another core reads next.

Kernels are made as LLVM code directly: already in vectors, so it takes milliseconds and
no optimiser, and does not depend on whether one can prove that operands do not overlap.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llvmlite import binding as llvm
from llvmlite import ir

from stretto import caches
from stretto.executors.cpu.running import elements
from stretto.executors.cpu.running.elements import Element, element
from stretto.program.elements import Operator

_I64 = ir.IntType(64)
_ENGINES: list[Any] = []
"""Engines own the code they made: kept for the life of the process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """What a kernel does."""

    dtype: str
    op: Operator
    num_srcs: int
    divide: tuple[int, ...]
    """For every destination, by what it gets the result divided, or 1."""
    streaming: tuple[bool, ...] = ()
    """For every destination, whether it is written past the caches; none: none is."""


@functools.cache
def _machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=_features().flatten(), opt=3
    )


@functools.cache
def _features() -> Any:
    return llvm.get_host_cpu_features()


@functools.cache
def vector_bytes() -> int:
    """Return the width of this machine's vectors."""
    features = _features()
    if features.get("avx512f"):
        return 64
    return 32 if features.get("avx2") else 16


def supports(dtype: str) -> bool:
    """Return whether kernels of that type can be made here."""
    if dtype != "float16" or platform.machine().lower() in ("arm64", "aarch64"):
        return True
    return bool(_features().get("f16c"))


@functools.cache
def address_of(kernel: Kernel) -> int:
    """Return the address of a kernel, compiled at the first request of any process."""
    path = caches.folder("loops") / f"{_identity(kernel)}.o"
    code = caches.once(path, lambda: _compiled(kernel), most=4096)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return int(engine.get_function_address("kernel"))


def _compiled(kernel: Kernel) -> bytes:
    """Return an object file with a kernel."""
    machine = _machine()
    module = llvm.parse_assembly(str(_module(kernel)))
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    code: bytes = machine.emit_object(module)
    return code


def _identity(kernel: Kernel) -> str:
    """Return a digest of all that a kernel's code depends on."""
    return hashlib.sha256(f"{_toolchain()} {kernel}".encode()).hexdigest()


@functools.cache
def _toolchain() -> str:
    """Return what all kernels depend on: the processor, LLVM, and what writes them."""
    texts = [Path(file).read_bytes() for file in (__file__, elements.__file__)]
    written = hashlib.sha256(b"".join(texts)).hexdigest()
    versions = llvm.llvm_version_info, llvm.get_default_triple()
    return f"{versions} {llvm.get_host_cpu_name()} {_features().flatten()} {written}"


class _Builder:
    """Writes one kernel."""

    def __init__(self, kernel: Kernel, body: Element) -> None:
        self.kernel, self.body = kernel, body
        self.module = ir.Module("kernel")
        kind = ir.FunctionType(ir.VoidType(), (_I64, _I64))
        self.function = ir.Function(self.module, kind, "kernel")
        self.at = ir.IRBuilder(self.function.append_basic_block())
        operands, self.nbytes = self.function.args
        count = len(kernel.divide) + kernel.num_srcs
        pointers = [self._address(operands, 8 * i, _I64) for i in range(count)]
        bases = [self.at.load(p) for p in pointers]
        self.dsts = bases[: len(kernel.divide)]
        self.srcs = bases[len(kernel.divide) :]
        self.nontemporal = self.module.add_metadata([ir.IntType(32)(1)])

    def _address(self, base: Any, offset: Any, kind: Any) -> Any:
        step = _I64(offset) if isinstance(offset, int) else offset
        return self.at.inttoptr(self.at.add(base, step), kind.as_pointer())

    def loop(
        self, start: Any, limit: Any, width: int, *, streaming: bool = False
    ) -> Any:
        """Do `width` elements at a time while they fit below `limit` bytes."""
        step = _I64(width * self.body.size)
        before = self.at.block
        head, work, done = (self.function.append_basic_block() for _ in range(3))
        self.at.branch(head)
        self.at.position_at_end(head)
        here = self.at.phi(_I64)
        here.add_incoming(start, before)
        after = self.at.add(here, step)
        self.at.cbranch(self.at.icmp_unsigned("<=", after, limit), work, done)
        self.at.position_at_end(work)
        self._step(here, width, streaming)
        here.add_incoming(after, self.at.block)
        self.at.branch(head)
        self.at.position_at_end(done)
        return here

    def _step(self, here: Any, width: int, streaming: bool) -> None:
        stored = self.body.stored(width)
        parts = [
            self.at.load(self._address(s, here, stored), align=1) for s in self.srcs
        ]
        total = self.body.combine(self.at, self.kernel.op, parts, width)
        finished: dict[int, Any] = {1: total}
        said = self.kernel.streaming or (False,) * len(self.dsts)
        for dst, by, past_it in zip(self.dsts, self.kernel.divide, said, strict=True):
            if by not in finished:
                finished[by] = self.body.divide(self.at, total, by, width)
            past = streaming and past_it
            align = width * self.body.size if past else 1
            put = self.at.store(finished[by], self._address(dst, here, stored), align)
            if past:
                put.set_metadata("nontemporal", self.nontemporal)

    def stream(self, width: int) -> Any:
        """Do what can be streamed; return how far that is.

        Streaming stores must be aligned, so destinations must be so together.
        """
        align = vector_bytes()
        first, *others = itertools.compress(self.dsts, self.kernel.streaming)
        skew = self.at.and_(first, _I64(align - 1))
        apart = self.at.urem(skew, _I64(self.body.size))
        for dst in others:
            differ = self.at.and_(self.at.xor(dst, first), _I64(align - 1))
            apart = self.at.or_(apart, differ)
        aligned = self.at.icmp_unsigned("==", apart, _I64(0))
        limit = self.at.select(aligned, self.nbytes, _I64(0))
        lead = self.at.and_(self.at.neg(skew), _I64(align - 1))
        shorter = self.at.icmp_unsigned("<", lead, limit)
        at = self.loop(_I64(0), self.at.select(shorter, lead, limit), 1)
        at = self.loop(at, limit, width, streaming=True)
        self.at.fence("seq_cst")
        return at


def _module(kernel: Kernel) -> Any:
    body = element(
        kernel.dtype, copies=kernel.num_srcs == 1 and {*kernel.divide} == {1}
    )
    writer = _Builder(kernel, body)
    vector = max(1, vector_bytes() // body.wide_size)
    at: Any = writer.stream(vector) if any(kernel.streaming) else _I64(0)
    unroll = body.unroll(kernel.num_srcs)
    width = vector * unroll
    while width:
        at = writer.loop(at, writer.nbytes, width)
        width = vector if width > vector else width // 2
    writer.at.ret_void()
    return writer.module
