"""Words of memory by address, with the orderings that C has and Python lacks.

acquire: nothing after it is done before it. release: nothing before it is done after
it. On x86 both are plain moves that the compiler may not reorder; on ARM they are ldar
and stlr. `pause` tells the core that this is a spin.
"""

from __future__ import annotations

import functools
import hashlib
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from stretto.jit.handlers import held_back
from stretto.jit.kept import Kept

__all__ = [
    "call",
    "call_c",
    "call_kernel",
    "clock_gettime",
    "compiled",
    "direct",
    "entry",
    "fence",
    "load",
    "load_acquire",
    "pause",
    "sched_yield",
    "store",
    "store_release",
    "take",
    "thread_ident",
    "usleep",
]

Compiled = TypeVar("Compiled", bound=Callable[..., Any])

_WORD = ir.IntType(64)
_X86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
_ARM = platform.machine().lower() in ("arm64", "aarch64")

sched_yield: Callable[[], int] = types.ExternalFunction("sched_yield", types.int32())
clock_gettime: Callable[[int, int], int] = types.ExternalFunction(
    "clock_gettime", types.int32(types.int32, types.int64)
)
thread_ident: Callable[[], int] = types.ExternalFunction("pthread_self", types.int64())
"""Return what `threading.get_ident` returns in this thread."""
usleep: Callable[[int], int] = types.ExternalFunction(
    "usleep", types.int32(types.uint32)
)


def compiled(signature: str, *, nogil: bool = True) -> Callable[[Compiled], Compiled]:
    """Compile a function now, for one signature, to run without the GIL.

    What is over at once keeps it: giving it back takes longer.
    """

    def decorate(function: Compiled) -> Compiled:
        dispatcher = njit(nogil=nogil)(function)
        if not config.DISABLE_JIT:
            sources = _sources(function.__code__.co_filename)
            with held_back(), Kept(function, sources) as kept:
                dispatcher._cache = kept
                dispatcher.compile(signature)
            dispatcher.disable_compile()
        done: Compiled = dispatcher
        return done

    return decorate


def entry(function: Any) -> int:
    """Return the address at which C, or another compiled function, may call this one.

    It takes and returns 64-bit words.
    """
    (signature,) = function.overloads
    made = function.overloads[signature]
    name = made.fndesc.llvm_cfunc_wrapper_name
    return int(made.library.get_pointer_to_function(name))


def direct(function: Any) -> Callable[..., Any]:
    """Return what calls a compiled function from Python with whole numbers at once.

    Numba first looks which of a function's signatures fits, but ours have one each.
    """
    (made,) = function.overloads.values()
    found: Callable[..., Any] = made.entry_point
    return found


@functools.cache
def _sources(file: str) -> str:
    """Return a hash of everything that is compiled together with a file's functions.

    Constants and functions of other files are compiled into a function, too: of those
    that lie beside it, of this room, and of all that these import.
    """
    folders = {Path(__file__).parent, Path(file).parent}
    files = {path for folder in folders for path in folder.glob("*.py")}
    new = set(files)
    while new:
        new = {found for path in new for found in _imported(path)} - files
        files |= new
    texts = [path.read_bytes() for path in sorted(files)]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:12]


_IMPORT = re.compile(r"^from (stretto[\w.]*) import (\([^)]*\)|[^\n]*)", re.MULTILINE)
_PACKAGE = Path(__file__).parents[1]


@functools.cache
def _imported(path: Path) -> frozenset[Path]:
    """Return the files of ours that a file imports; a room's facade is not followed."""
    if path.name == "__init__.py":
        return frozenset()
    found = set()
    for module, names in _IMPORT.findall(path.read_text(encoding="utf-8")):
        place = _PACKAGE.joinpath(*module.split(".")[1:])
        places = [place, *(place / name for name in re.findall(r"\w+", names))]
        for one in places:
            found |= {one.with_suffix(".py"), one / "__init__.py"}
    return frozenset(one for one in found if one.is_file())


def _pointer(builder: Any, address: Any) -> Any:
    return builder.inttoptr(address, _WORD.as_pointer())


def _load(typing: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0]))

    return types.int64(types.int64), emit


def _load_acquire(typing: Any, address: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = _pointer(builder, args[0])
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), emit


def _store(typing: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _pointer(builder, args[0]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def _store_release(typing: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store_atomic(args[1], _pointer(builder, args[0]), "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), emit


def _fence(typing: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), emit


def _take(typing: Any, address: Any, value: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        none = ir.Constant(_WORD, 0)
        pointer = _pointer(builder, args[0])
        done = builder.cmpxchg(pointer, none, args[1], "acquire", "monotonic")
        return builder.zext(builder.extract_value(done, 1), _WORD)

    return types.int64(types.int64, types.int64), emit


def _pause(typing: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        if _ARM or _X86:
            name = "llvm.aarch64.hint" if _ARM else "llvm.x86.sse2.pause"
            kinds = (ir.IntType(32),) if _ARM else ()
            kind = ir.FunctionType(ir.VoidType(), kinds)
            hint = cgutils.get_or_insert_function(builder.module, kind, name)
            builder.call(hint, [k(1) for k in kinds])
        return context.get_dummy_value()

    return types.void(), emit


def _call(typing: Any, function: Any, first: Any, second: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_WORD, (_WORD, _WORD))
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])

    return types.int64(types.int64, types.int64, types.int64), emit


def _call_c(typing: Any, function: Any, *words: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given = cgutils.unpack_tuple(builder, args[1])
        kind = ir.FunctionType(_WORD, (_WORD,) * len(given))
        return builder.call(builder.inttoptr(args[0], kind.as_pointer()), given)

    return types.int64(types.int64, types.StarArgTuple.from_types(words)), emit


def _call_kernel(typing: Any, kernel: Any, operands: Any, nbytes: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), (_WORD, _WORD))
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), args[1:])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), emit


load: Callable[[int], int] = intrinsic(_load)
"""Return the word at an address."""
load_acquire: Callable[[int], int] = intrinsic(_load_acquire)
"""Return the word at an address; what its writer released is visible then."""
store: Callable[[int, int], None] = intrinsic(_store)
"""Store a word at an address."""
store_release: Callable[[int, int], None] = intrinsic(_store_release)
"""Store a word at an address, after everything before it."""
fence: Callable[[], None] = intrinsic(_fence)
"""Let nothing after it begin before all before it is seen by everybody."""
take: Callable[[int, int], int] = intrinsic(_take)
"""Store a word where there is none but 0, at once; return whether it was so."""
pause: Callable[[], None] = intrinsic(_pause)
"""Tell the core that this is a spin."""
call: Callable[[int, int, int], int] = intrinsic(_call)
"""Call a function of two words by its address; return the word that it returns."""
call_c: Callable[..., int] = intrinsic(_call_c)
"""Call a C function by its address, with words; return the word that it returns."""
call_kernel: Callable[[int, int, int], None] = intrinsic(_call_kernel)
"""Call a kernel by its address, on operands and a number of bytes: see `kernels`."""
