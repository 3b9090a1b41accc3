"""What people know from MPI, NCCL, torch or JAX, and what it is called here.

Nothing here is on the way of a call that works: an attribute that is missing, or a call
that Python has refused, comes here for words.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_SAME = {
    "allreduce": "all_reduce(x)",
    "allgather": "all_gather(x)",
    "allgatherv": "all_gather_v(x, counts)",
    "allgatherintotensor": "all_gather(x, out=out)",
    "allgathercoalesced": "coalesced()",
    "allreducecoalesced": "coalesced()",
    "reducescatter": "reduce_scatter(x)",
    "reducescatterblock": "reduce_scatter(x)",
    "reducescattertensor": "reduce_scatter(x, out=out)",
    "alltoall": "all_to_all(x)",
    "alltoallv": "all_to_all_v(x, counts)",
    "alltoallsingle": "all_to_all(x), or all_to_all_v(x, counts)",
    "bcast": "broadcast(x, root=0)",
    "broadcastobjectlist": "broadcast_object(value, root=0)",
    "scatterobjectlist": "scatter_object(values, root=0)",
    "gatherv": "gather_v(x, counts, root=0)",
    "scatterv": "scatter_v(x, counts, root=0)",
    "sendrecv": "permute(x, pairs), or send_async(x, to) and recv(out, source)",
    "sendrecvreplace": "permute(x, pairs, out=x)",
    "ppermute": "permute(x, pairs)",
    "psum": "all_reduce(x)",
    "pmean": 'all_reduce(x, op="avg")',
    "pmax": 'all_reduce(x, op="max")',
    "pmin": 'all_reduce(x, op="min")',
    "receive": "recv(out, source)",
    "size": "num_ranks",
    "worldsize": "num_ranks",
    "nranks": "num_ranks",
    "getsize": "num_ranks",
    "getworldsize": "num_ranks",
    "commsize": "num_ranks",
    "commcount": "num_ranks",
    "count": "num_ranks",
    "getrank": "rank",
    "commrank": "rank",
    "userrank": "rank",
    "commuserrank": "rank",
    "localrank": "rank, or LOCAL_RANK in the environment",
    "newgroup": "split(color)",
    "commsplit": "split(color)",
    "newsubgroups": "split(color)",
    "dup": "split(0)",
    "commdup": "split(0)",
    "clone": "split(0)",
    "free": "close()",
    "destroy": "close()",
    "disconnect": "close()",
    "finalize": "close()",
    "commdestroy": "close()",
    "destroyprocessgroup": "close()",
    "monitoredbarrier": "barrier()",
    "wait": "wait() of the Work that an _async form returns",
    "batchisendirecv": "send_async(x, to) and recv_async(out, source)",
    "groupstart": "send_async(x, to) and recv_async(out, source), or coalesced()",
    "groupend": "send_async(x, to) and recv_async(out, source), or coalesced()",
    "commregister": "register(array), or empty(shape, dtype)",
    "memalloc": "empty(shape, dtype)",
    "asyncerror": "check()",
    "commgetasyncerror": "check()",
    "abort": "close(), or raise: the other ranks are told",
    "commabort": "close(), or raise: the other ranks are told",
}
"""By their names in lower case, without underscores or `nccl`, `mpi` before them."""
_MODULE = {
    "initprocessgroup": "connect(), or spawn(work, num_ranks=2)",
    "init": "connect(), or spawn(work, num_ranks=2)",
    "commworld": "connect(), or spawn(work, num_ranks=2)",
    "commgetparent": "connect(), or spawn(work, num_ranks=2)",
    "communicatorfromenv": "connect()",
    "run": "spawn(work, num_ranks=2)",
    "launch": "spawn(work, num_ranks=2)",
    "processgroup": "Communicator",
    "comm": "Communicator",
    "reduceop": 'words: op="sum", of sum, prod, min, max, avg, band, bor, bxor',
    "op": 'words: op="sum", of sum, prod, min, max, avg, band, bor, bxor',
    "request": "Work",
}
_ROOT = "root="
_ARGUMENTS = {
    "src": _ROOT,
    "dst": _ROOT,
    "source": _ROOT,
    "dest": _ROOT,
    "rank": _ROOT,
    "tensor": "x, the first argument",
    "input": "x, the first argument",
    "sendbuf": "x, the first argument",
    "sendobj": "x, the first argument",
    "array": "x, the first argument",
    "input_tensor": "x, the first argument",
    "output": "out=",
    "recvbuf": "out=",
    "output_tensor": "out=",
    "tensor_list": "out=",
    "reduce_op": "op=",
    "operator": "op=",
    "operation": "op=",
    "async_op": "the form that ends with _async, which returns a Work",
    "group": "split(color), which makes a communicator of some ranks",
    "comm": "split(color), which makes a communicator of some ranks",
    "timeout": "deadline_s= of spawn and connect",
    "tag": "no tag: what one rank sends to another comes in order",
    "datatype": "dtype=",
    "sendcounts": "counts, the second argument of the _v form",
    "recvcounts": "counts, the second argument of the _v form",
    "counts": "counts, the second argument of the _v form",
    "perm": "pairs, the second argument",
    "axis": "split= and concat=, of all_to_all",
}
_BETWEEN_TWO = {
    "send": dict.fromkeys(("dst", "dest", "target", "root", "rank", "peer"), "to="),
    "recv": dict.fromkeys(("src", "from_rank", "root", "rank", "peer"), "source="),
}
_ROOTED = ("broadcast", "reduce", "gather", "scatter", "gather_v", "scatter_v")
_UNKNOWN = re.compile(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'")
_TOO_MANY = re.compile(r"(\w+)\(\) takes .*positional arguments? but \d+ ")
_CALLED = re.compile(r"\A(\w+)\.")


def attribute_hint(name: str, known: Iterable[str]) -> str:
    """Return what a communicator says of a name that it has not."""
    names = [n for n in known if not n.startswith("_")]
    want = _meant(name, names)
    if want is None:
        near = difflib.get_close_matches(name.lower(), names, n=3, cutoff=0.65)
        want = " or ".join(near) if near else ", ".join(sorted(names))
    return f"a communicator has no {name!r}; want {want}"


def _meant(name: str, names: Iterable[str]) -> str | None:
    """Return what a name that others use is called here."""
    plain = name.lower().replace("_", "")
    for before in ("nccl", "mpi"):
        plain = plain.removeprefix(before)
    own = {n.replace("_", ""): n for n in names}
    for word in (plain, plain.removesuffix("async"), plain.removeprefix("i")):
        told = _SAME.get(word) or own.get(word)
        if told is None:
            continue
        verb, bracket, rest = told.partition("(")
        starts = word != plain and f"{verb}_async" in own.values()
        return f"{verb}_async{bracket}{rest}" if starts else told
    return None


def module_hint(name: str, known: Iterable[str], verbs: Iterable[str]) -> str:
    """Return what the package says of a name that it has not."""
    said = f"module 'stretto' has no attribute {name!r}"
    plain = name.lower().replace("_", "")
    if plain in _MODULE:
        return f"{said}; want {_MODULE[plain]}"
    if want := _meant(name, [v for v in verbs if not v.startswith("_")]):
        return f"{said}; want a communicator's: comm.{want}"
    if near := difflib.get_close_matches(name, list(known), n=3, cutoff=0.7):
        return f"{said}; did you mean {' or '.join(near)}?"
    return said


def argument_hint(error: BaseException, classes: Iterable[str]) -> str:
    """Return what to write where Python has refused a verb's arguments; else nothing.

    `classes` are those whose methods are verbs: others are none of our business.
    """
    text = str(error)
    owner = _CALLED.match(text)
    if type(error) is not TypeError or owner is None or owner[1] not in set(classes):
        return ""
    text = text[owner.end() :]
    if many := _TOO_MANY.match(text):
        verb = many[1].removesuffix("_async")
        if verb in _ROOTED:
            return f"a root goes by name: {verb}(x, root=0)"
        return f"{verb}: all but the first arguments go by name, such as out=..."
    if found := _UNKNOWN.match(text):
        verb, name = found[1].removesuffix("_async"), found[2]
        told = _BETWEEN_TWO.get(verb, {}).get(name) or _ARGUMENTS.get(name, "")
        if told == _ROOT and verb not in _ROOTED:
            told = ""
        return f"{verb} takes no {name}=; want {told}" if told else ""
    return ""
