"""A folder as a store: a file a tensor, read and written past the page cache.

NAME/layout.json    the layout, and how long pieces are
NAME/0.bytes        a tensor, as its layout says
NAME/0.sums         of each piece a word: 2^32 + its CRC-32, or 0
"""

from __future__ import annotations

import os
import shutil
import struct
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from stretto.caches import private
from stretto.transfer.stores.store import Missing, Piece, Store, StoreError

_SUM = struct.Struct("<Q")
_THERE = 1 << 32
_TEXT = "layout.json"
_ALIGNED = 4096
_O_DIRECT = getattr(os, "O_DIRECT", 0)


class Files(Store):
    """See the module. `direct=False` leaves pages in the kernel's cache."""

    kind = "file"
    streams = 4
    takes_parts = True

    def __init__(self, folder: str | os.PathLike[str], *, direct: bool = True) -> None:
        self._folder = Path(folder)
        self.where = f"folder {self._folder}"
        self._direct = direct and bool(_O_DIRECT)
        self._open: dict[tuple[str, bool], int] = {}
        self._lock = threading.Lock()

    def _path(self, piece: Piece, kind: str) -> Path:
        return self._folder / piece.volume / f"{piece.part}.{kind}"

    def _file(self, path: Path, *, direct: bool = False, make: bool = False) -> int:
        """Return a file's descriptor; it stays open until `close`."""
        key = os.fspath(path), direct
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                return found
            flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if make else 0)
            try:
                if make:
                    path.parent.mkdir(parents=True, exist_ok=True)
                number = os.open(path, flags | (_O_DIRECT if direct else 0), 0o600)
            except FileNotFoundError:
                raise Missing(f"{path}: there is no such file") from None
            except OSError as e:
                if direct:  # not every file system has it
                    self._direct = False
                    return -1
                raise StoreError(f"{path}: {e.strerror}") from e
            self._open[key] = number
            return number

    def _fitting(self, path: Path, at: int, data: memoryview, *, make: bool) -> int:
        """Return the descriptor by which these bytes go best."""
        number = self._file(path, make=make)
        if not self._direct or at % _ALIGNED or len(data) % _ALIGNED:
            return number
        if _address(data) % _ALIGNED:
            return number
        direct = self._file(path, direct=True)
        return number if direct < 0 else direct

    def read(self, piece: Piece, begin: int, into: memoryview) -> int | None:
        """Read a part of a piece."""
        path, at = self._path(piece, "bytes"), piece.at + begin
        number = self._fitting(path, at, into, make=False)
        got = 0
        try:
            while got < len(into):
                some = os.preadv(number, [into[got:]], at + got)
                if not some:
                    break
                got += some
                if got % _ALIGNED:  # the file ends here, or it goes on unaligned
                    number = self._file(path)
        except OSError as e:
            raise StoreError(f"{path}, byte {at + got}: {e.strerror}") from e
        into[got:] = bytes(len(into) - got)  # nobody has stored that yet
        return self._sum(piece)

    def _sum(self, piece: Piece) -> int | None:
        try:
            number = self._file(self._path(piece, "sums"))
        except Missing:
            return None
        raw = os.pread(number, _SUM.size, _SUM.size * piece.number)
        if len(raw) < _SUM.size:
            return None
        (word,) = _SUM.unpack(raw)
        return word - _THERE if word else None

    def write(
        self, piece: Piece, begin: int, data: memoryview, total: int | None
    ) -> None:
        """Store a part of a piece; it has no sum while it is stored."""
        self._note(piece, None)
        path, at = self._path(piece, "bytes"), piece.at + begin
        number = self._fitting(path, at, data, make=True)
        done = 0
        try:
            while done < len(data):
                done += os.pwritev(number, [data[done:]], at + done)
                if done % _ALIGNED:
                    number = self._file(path)
        except OSError as e:
            raise StoreError(f"{path}, byte {at + done}: {e.strerror}") from e
        if total is not None:
            self._note(piece, total)

    def _note(self, piece: Piece, total: int | None) -> None:
        path = self._path(piece, "sums")
        if total is None and not path.exists():
            return
        word = 0 if total is None else _THERE + total
        number = self._file(path, make=True)
        try:
            os.pwrite(number, _SUM.pack(word), _SUM.size * piece.number)
        except OSError as e:
            raise StoreError(f"{path}: {e.strerror}") from e

    def put_text(self, name: str, text: bytes) -> None:
        """Keep a volume's text."""
        path = self._folder / name / _TEXT
        fresh = path.with_name(f"{_TEXT}.{uuid.uuid4().hex}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with private(fresh) as file:
                file.write(text)
            fresh.replace(path)
        except OSError as e:
            raise StoreError(f"{path}: {e.strerror}") from e

    def get_text(self, name: str) -> bytes:
        """Return it."""
        path = self._folder / name / _TEXT
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise Missing(f"{self.where} has no {name!r}") from None
        except OSError as e:
            raise StoreError(f"{path}: {e.strerror}") from e

    def names(self, prefix: str) -> Sequence[str]:
        """Return volumes whose names begin so."""
        found = (p.parent for p in self._folder.rglob(_TEXT))
        named = (p.relative_to(self._folder).as_posix() for p in found)
        return sorted(name for name in named if name.startswith(prefix))

    def flush(self, volume: str) -> None:
        """Have the kernel write a volume's files to their disk."""
        begin = os.fspath(self._folder / volume) + os.sep
        with self._lock:
            some = [n for (path, _), n in self._open.items() if path.startswith(begin)]
        for number in some:
            try:
                os.fdatasync(number)
            except OSError as e:
                raise StoreError(f"{self.where}, {volume!r}: {e.strerror}") from e

    def remove(self, volume: str) -> None:
        """Delete a volume's files."""
        folder = self._folder / volume
        begin = os.fspath(folder) + os.sep
        with self._lock:
            for key in [k for k in self._open if k[0].startswith(begin)]:
                os.close(self._open.pop(key))
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for number in self._open.values():
                os.close(number)
            self._open.clear()


def _address(data: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(data, np.uint8).ctypes.data) if len(data) else 0
