"""Run a generated kernel on this CPU: the same text, compiled by g++.

Only what is inline assembly is replaced: memory accesses, barriers, the clock. So the
protocols, the epochs, the clerk and the give-up path are what a GPU runs, with threads
of the operating system in place of its own.
"""

import ctypes
import functools
import hashlib
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np

from stretto.compiler.verify import verify_plan
from stretto.executors.cuda.codegen import abi
from stretto.executors.cuda.codegen.compile import headers
from stretto.executors.cuda.codegen.generate import kernel_of
from stretto.executors.cuda.flags.regions import fit
from stretto.executors.cuda.words import RECORD
from stretto.program import collectives
from stretto.program.collectives import Shape, storage
from stretto.testing import draw, input_counts, interpret, output_counts

HERE = Path(__file__).parent
FINGERPRINT = 7
# Not optimised: most of the time is the compiler's.
OPTIONS = ["-O0", "-std=c++20", "-w", "-ffp-contract=off", "-fPIC", "-pthread"]
LEAST = [
    "-nostdinc++",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-asynchronous-unwind-tables",
]
"""What kernels do without."""
SHARED = None
"""The folder of a session's libraries; conftest.py says where."""
OURS = ("memory.cuh", "cluster.cuh")
"""Headers of which emulate.hpp has its own version."""
REPLACED = (
    (r'asm volatile\("bar\.sync 1.*?;\n', "meet(1, C::threads, true);\n"),
    (
        r'asm volatile\("barrier\.cta\.arrive 2.*?;\n',
        "meet(2, THREADS + CLERK, false);\n",
    ),
    (
        r'asm volatile\("barrier\.cta\.sync 2.*?;\n',
        "meet(2, C::threads + CLERK, true);\n",
    ),
    (
        r'asm volatile\(\s*"\{\\n \.reg .*?"memory"\);',
        "failed = meet(1, C::threads, true, !ok);",
    ),
    (r'asm volatile\("" : "\+l"\(settled\)\);', ""),
    (r'asm volatile\("griddepcontrol.*?;\n', "\n"),
    (r"#if defined\(__CUDA_ARCH__\).*?#endif\n", "\n"),
    (r'asm\("cvt\.f32\.f16.*?;\n', "f = half(raw);\n"),
    (r'asm\("cvt\.rn\.f16x2.*?;\n', "w = halves(in[0], in[1]);\n"),
    (r'asm\("cvt\.rn\.bf16x2.*?;\n', "w = brains(in[0], in[1]);\n"),
    (r"__shared__ T one;\s*return one;", "return of_this_block<T>();"),
)


def _included(text):
    """Return the names of the headers that a text includes, theirs too."""
    found, left = set(), [text]
    while left:
        names = set(re.findall(r'#include "(\w+\.cuh)"', left.pop())) - found
        found |= names
        left += [headers()[n] for n in names]
    return found


@functools.cache
def runtime():
    """Load what emulate.hpp declares, for every kernel of this process."""
    made = _made_once("emulate", ["-O1", str(HERE / "emulate.cpp")], HERE)
    return ctypes.CDLL(str(made), mode=ctypes.RTLD_GLOBAL)


def compiled(folder, name):
    """Return the library of a source, before which emulate.hpp comes."""
    runtime()
    first = ["-include", str(HERE / "emulate.hpp")]
    return _made_once("kernel", [*LEAST, *first, name], folder)


def _made_once(name, words, folder):
    """Return the library that g++ makes of a folder's files, made once a session.

    Its processes share a folder of them, each named by all that it was made of.
    """
    SHARED.mkdir(parents=True, exist_ok=True)
    parts = [*OPTIONS, *words, *(f.read_text() for f in _sources(folder))]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    library = SHARED / f"{name}-{digest}.so"
    if not library.exists():
        mine = SHARED / f"{digest}.{os.getpid()}"
        made = ["g++", *OPTIONS, *words, "-shared", "-o", str(mine)]
        subprocess.run(made, cwd=folder, check=True, timeout=120)
        mine.replace(library)
    return library


def _sources(folder):
    """Return the files of a folder that a library may be made of."""
    return sorted(f for f in folder.iterdir() if f.suffix in (".cpp", ".cuh", ".hpp"))


def translated(kernel, folder):
    """Write the headers of a kernel as this CPU's compiler takes them."""
    for name in _included(kernel.text):
        text = headers()[name]
        for pattern, other in REPLACED:
            text = re.sub(pattern, lambda _, o=other: o, text, flags=re.DOTALL)
        assert "asm" not in text or name in OURS, name
        (folder / name).write_text(text)
    for name in OURS:
        (folder / name).write_text("#pragma once\n")


def build(kernel, folder):
    """Return a library whose `go` runs the kernel: its parameters, the first block."""
    translated(kernel, folder)
    cluster = re.search(r"__cluster_dims__\((\d+)", kernel.text)
    entry = (
        '\nextern "C" unsigned go(Calls* calls, unsigned from) {\n'
        f"  of_cluster = {cluster.group(1) if cluster else 1};\n"
        f"  launch(stretto_kernel, *calls, {kernel.grid}, {kernel.threads}, from);\n"
        "  return is_stuck() ? 1u << 31 : late_words();\n}\n"
    )
    (folder / "kernel.cpp").write_text(f"{kernel.text}{entry}")
    library = ctypes.CDLL(str(compiled(folder, "kernel.cpp")))
    library.go.restype = ctypes.c_uint
    return library


def aligned(nbytes, fill=0):
    """Return bytes that start at a multiple of 128."""
    raw = np.full(nbytes + 128, fill, np.uint8)
    start = -raw.ctypes.data % 128
    return raw[start : start + nbytes]


class Emulated:
    """All ranks of a plan, in one launch, with memory that outlives launches."""

    def __init__(
        self,
        program,
        plan,
        folder,
        *,
        dtype,
        op,
        counts,
        deadline_s=60,
        epilogue=None,
        rows=(0, 0),
        share=0,
        edit=lambda text: text,
    ):
        """`edit` changes the kernel's text, to make a rank fail in it."""
        n = plan.num_ranks
        self.program, self.plan, self.dtype, self.op = program, plan, dtype, op
        self.itemsize = storage(dtype).itemsize
        self.epilogue = epilogue
        self.kernel = kernel_of(
            verify_plan(plan),
            rank=None,
            dtype=dtype,
            op=op,
            epilogue=epilogue,
            rows=rows,
            share=share,
        )
        text = edit(self.kernel.text)
        self.library = build(replace(self.kernel, text=text), folder)
        kind = collectives.get(plan.collective)
        shape = Shape(num_ranks=n, split=plan.split, params=plan.params)
        self.counts = [counts] * kind.num_parts(shape)
        grain = (epilogue.row if epilogue else 0) or 1
        grains = np.asarray(self.counts) // grain
        sizes = kind.symbol_sizes(shape, grains, self.itemsize * grain)
        self.where = fit(plan, sizes, self.itemsize, grain=grain, share=share)
        self.needs = [abi.footprint(plan, self.where, r) for r in range(n)]
        self.half = max(f.stage for f in self.needs)
        self.packet_half = max(f.packets for f in self.needs)
        self.stage = [aligned(2 * self.half, 0x5A) for _ in range(n)]
        self.packets = [aligned(2 * self.packet_half) for _ in range(n)]
        self.control = [aligned(abi.control_bytes(n)) for _ in range(n)]
        self.records = [aligned(RECORD.itemsize) for _ in range(n)]
        self.deadline_s = deadline_s

    def launch(self, given, *, fingerprints=None, absent=0, shift=0, extra=None):
        """Run once; return every rank's output. The first `absent` ranks stay away.

        Arrays begin `shift` bytes after a multiple of 16. `extra` are each rank's words
        for the epilogue.
        """
        n = self.plan.num_ranks
        n_out = output_counts(self.program, self.counts)
        source = [aligned(g.nbytes + 16)[shift:] for g in given]
        target = [aligned(c * self.itemsize + 16, 0x77)[shift:] for c in n_out]
        for memory, values in zip(source, given, strict=True):
            memory[: values.nbytes] = values.view(np.uint8)
        fields = {
            name: [memory.ctypes.data for memory in memories]
            for name, memories in (
                ("input", source),
                ("output", target),
                ("stage", self.stage),
                ("packets", self.packets),
                ("control", self.control),
            )
        }
        packed = b"".join(
            abi.pack(
                self.kernel,
                self.where,
                {
                    **self.places(r, fields),
                    "record": self.records[r].ctypes.data,
                    "deadline_ns": int(self.deadline_s * 1e9),
                    "fingerprint": (fingerprints or [FINGERPRINT] * n)[r],
                    "stage_half": self.half,
                    "packet_half": self.packet_half,
                },
                () if extra is None else extra[r],
            ).tobytes()
            for r in range(n)
        )
        late = self.library.go(ctypes.c_char_p(packed), absent * self.kernel.grid // n)
        assert late >> 31 == 0, "threads waited for others that never come"
        assert late == 0, "nobody writes to a block of its cluster that has ended"
        return [
            t[: c * self.itemsize].view(storage(self.dtype))
            for t, c in zip(target, n_out, strict=True)
        ]

    def places(self, rank, fields):
        """Return where everything lies, as a rank maps it."""
        return fields

    def draw(self, rng):
        """Return fresh inputs and the outputs they should give."""
        counts = input_counts(self.program, self.counts)
        given = [draw(rng, c, self.dtype, self.op) for c in counts]
        return given, self.expected(given)

    def expected(self, given):
        """Return what the reference interpreter makes of inputs."""
        return interpret(
            self.program, given, dtype=self.dtype, op=self.op, counts=self.counts
        )

    def record(self, rank):
        """Return what a rank wrote when it gave up."""
        return self.records[rank].view(RECORD)[0]
