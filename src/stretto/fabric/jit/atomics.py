"""Words of memory by address, with the orderings that C has and Python lacks.

acquire: nothing after it is done before it. release: nothing before it is done after
it. On x86 both are plain moves that the compiler may not reorder; on ARM they are ldar
and stlr. `pause` tells the core that this is a spin.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any, TypeVar

from llvmlite import ir
from numba import config, njit, types
from numba.core import cgutils
from numba.core.typing.templates import AttributeTemplate
from numba.extending import infer_getattr, intrinsic, lower_getattr

from stretto.fabric.jit.handlers import held_back
from stretto.fabric.jit.kept import KeptFunctions
from stretto.fabric.jit.sources import sources_of
from stretto.fabric.jit.words import Words

__all__ = [
    "call",
    "call_c",
    "call_kernel",
    "compiled",
    "direct",
    "entry",
    "fence",
    "load",
    "load_acquire",
    "pause",
    "store",
    "store_release",
    "take",
]

Compiled = TypeVar("Compiled", bound=Callable[..., Any])

_WORD = ir.IntType(64)
_X86 = platform.machine().lower() in ("x86_64", "amd64", "i686")
_ARM = platform.machine().lower() in ("arm64", "aarch64")


@infer_getattr
class _AtOfWords(AttributeTemplate):  # type: ignore[misc]
    """What `Words` have beside what other enumerations have: compiled code knows it."""

    key = types.IntEnumMember

    def resolve_at(self, member: Any) -> Any:
        return types.int64 if issubclass(member.instance_class, Words) else None


def _at(context: Any, builder: Any, kind: Any, index: Any) -> Any:
    return builder.mul(index, _WORD(8))


lower_getattr(types.IntEnumMember, "at")(_at)


def compiled(
    *signatures: str, nogil: bool = True, lean: bool = False
) -> Callable[[Compiled], Compiled]:
    """Compile a function now, for each signature, to run without the GIL.

    What is over at once keeps it: giving it back takes longer. A `lean` one neither
    makes arrays nor keeps any, so it counts no references to those it is handed, and
    it divides as C does: nothing it divides by is 0.
    """
    how: dict[str, Any] = {"_nrt": False, "error_model": "numpy"} if lean else {}

    def decorate(function: Compiled) -> Compiled:
        dispatcher = njit(nogil=nogil, **how)(function)
        if not config.DISABLE_JIT:
            sources = sources_of(function.__code__.co_filename) + "lean" * lean
            for signature in signatures:
                with held_back(), KeptFunctions(function, sources) as kept:
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

    Numba first looks which of a function's signatures fits; these have one each.
    """
    (made,) = function.overloads.values()
    found: Callable[..., Any] = made.entry_point
    return found


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
