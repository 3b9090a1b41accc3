"""The other side of transfer.py: a process that serves memory; what it must hold."""

# ruff: noqa: T201  (part of a program: it answers on its output)

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stretto.errors import StrettoError
from stretto.transfer import Engine, Layout
from stretto.transfer.copying.convert import converted

WAIT = 20.0
SECRET = b"device" * 6


def serve(job: str) -> None:
    """Share what the parent asks for, and say what lies there."""
    engines: dict[str, Engine] = {}
    tensors: dict[str, Any] = {}
    leases: dict[str, Any] = {}
    torch.cuda.init()
    for line in sys.stdin:
        said = json.loads(line)
        answer: Any = True
        try:
            match said["do"]:
                case "engine":
                    listens = "127.0.0.1:0" if said.get("listen") else None
                    name = said["name"]
                    made = Engine(name, job=job, secret=SECRET, listen=listens)
                    engines[name] = made
                    answer = made.address
                case "share":
                    engine = engines[said["engine"]]
                    made = [
                        _tensor(engine, said["where"], n, said.get("fill", 0))
                        for n in said["nbytes"]
                    ]
                    name = said["name"]
                    tensors[name] = made
                    given = made if said["several"] else made[0]
                    engine.share(given, name, said["layout"])
                case "read":
                    torch.cuda.synchronize()
                    parts = [bytes_of(t) for t in tensors[said["name"]]]
                    np.save(said["file"], np.concatenate(parts))
                case "write":
                    data = np.load(said["file"])
                    at = 0
                    for t in tensors[said["name"]]:
                        _store(t, data[at : at + t.nbytes])
                        at += t.nbytes
                case "lease":
                    leases["it"] = engines[said["engine"]].lease()
                    answer = leases["it"].token.hex()
                case "end":
                    leases["it"].end()
                case "notified":
                    engine = engines[said["engine"]]
                    engine.notified(bytes.fromhex(said["tag"])).wait(WAIT)
                case "unshare":
                    tensors.pop(said["name"])
        except StrettoError as e:
            answer = f"{type(e).__name__}: {e}"
        print(json.dumps(answer), flush=True)


def _tensor(engine: Engine, where: str, nbytes: int, fill: int) -> Any:
    if where == "gpu":
        return torch.full((nbytes,), fill, dtype=torch.uint8, device="cuda")
    made = np.empty(nbytes, np.uint8) if where == "private" else engine.arena(nbytes)
    made[:] = fill
    return made


def bytes_of(t: Any) -> Any:
    return t.cpu().numpy() if isinstance(t, torch.Tensor) else t.copy()


def _store(t: Any, data: Any) -> None:
    if isinstance(t, torch.Tensor):
        t.copy_(torch.from_numpy(data))
        torch.cuda.synchronize()
    else:
        t[:] = data


class Child:
    """The process at the other end."""

    def __init__(self, out: Path, program: str, job: str) -> None:
        self._out = out
        self._process = subprocess.Popen(
            [sys.executable, program, "--serve", job],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def ask(self, **said: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the child ended while it was asked to {said}")
        answer = json.loads(line)
        if isinstance(answer, str) and "Error" in answer.split(":")[0]:
            raise RuntimeError(f"the child answers {answer}")
        return answer

    def share(
        self, engine: str, name: str, layout: Layout, *, where: str = "gpu",
        fill: int = 0,
    ) -> None:  # fmt: skip
        sizes = [layout.part_bytes] * layout.num_parts
        self.ask(
            do="share", engine=engine, name=name, layout=str(layout), nbytes=sizes,
            where=where, several=bool(layout.parts), fill=fill,
        )  # fmt: skip

    def read(self, name: str, layout: Layout) -> list[Any]:
        path = self._out / "read.npy"
        self.ask(do="read", name=name, file=str(path))
        return list(np.load(path).reshape(layout.num_parts, -1))

    def write(self, name: str, parts: list[Any]) -> None:
        path = self._out / "write.npy"
        np.save(path, np.concatenate(parts))
        self.ask(do="write", name=name, file=str(path))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)


# What is expected, by the definition of the layouts, element by element in NumPy.


def logical(layout: Layout, parts: list[Any], pages: list[int]) -> dict[str, Any]:
    """Return what lies where in the whole tensor: numbers of elements, and values."""
    axes = {a.name: a for a in (*layout.parts, *layout.axes)}
    names = sorted(n for n in axes if n not in ("B", "T"))
    shape = tuple(a.size for a in (*layout.parts, *layout.axes))
    dense = np.stack(parts)
    strides = tuple(a.stride for a in layout.axes)
    per_part = [
        np.lib.stride_tricks.as_strided(
            p[: layout.part_bytes].view(layout.storage)
            if layout.part_bytes % layout.itemsize == 0
            else p,
            tuple(a.size for a in layout.axes),
            strides,
        )
        for p in dense
    ]
    values = np.stack(per_part).reshape(shape)
    order = [a.name for a in (*layout.parts, *layout.axes)]
    if "B" in axes:
        values = np.take(values, pages, axis=order.index("B"))
    lead = [n for n in ("B", "T") if n in axes]
    moved = np.transpose(values, [order.index(n) for n in (*lead, *names)])
    tokens = int(np.prod(moved.shape[: len(lead)], dtype=int)) if lead else 1
    flat = moved.reshape(tokens, *moved.shape[len(lead) :])
    ranges = [range(axes[n].start, axes[n].stop) for n in names]
    return {"names": names, "ranges": ranges, "values": flat}


def same(a: Layout, src: list[Any], from_: list[int], b: Layout, dst: list[Any],
         to: list[int]) -> bool:  # fmt: skip
    """Return whether what both hold is alike, converted where types differ."""
    x, y = logical(a, src, from_), logical(b, dst, to)
    cuts_x: list[Any] = [slice(None)]
    cuts_y: list[Any] = [slice(None)]
    for one, other in zip(x["ranges"], y["ranges"], strict=True):
        low, high = max(one.start, other.start), min(one.stop, other.stop)
        cuts_x.append(slice(low - one.start, high - one.start))
        cuts_y.append(slice(low - other.start, high - other.start))
    want = np.ascontiguousarray(x["values"][tuple(cuts_x)])
    got = np.ascontiguousarray(y["values"][tuple(cuts_y)])
    want = np.ascontiguousarray(converted(want, a.dtype, b.dtype))
    return want.tobytes() == got.tobytes()


def random_parts(layout: Layout, seed: int) -> list[Any]:
    """Return random tensors; of floats, ones without NaN."""
    rng = np.random.default_rng(seed)
    parts = []
    for _ in range(layout.num_parts):
        size = layout.part_bytes
        if layout.dtype == "float32":
            raw = rng.standard_normal(size // 4).astype(np.float32).view(np.uint8)
        else:
            raw = rng.integers(0, 120, size, dtype=np.uint8)
        parts.append(raw)
    return parts
