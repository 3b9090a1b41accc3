"""A file of last words: what members of a host say where the hub says nothing.

The hub's word counts. But the process that hosts it may be stopped, or get no turn for
a while; and meanwhile a rank gives up and goes, and is itself taken for lost. So who
has waited in vain for the hub's verdict, and whoever leaves, says here what the hub
would tell: the same messages, one a line. Appends have one order. Whatever stands first
of a group is the verdict for everybody who looks, and for the hub.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TypeAlias

from stretto.errors import SharedMemoryError
from stretto.fabric.faults import Fault
from stretto.fabric.generations import said_fault
from stretto.fabric.meeting import messages
from stretto.fabric.memory import create_file
from stretto.fabric.messages import Departed, Lost, Verdict
from stretto.fabric.wire import Descriptor, Frame

Words: TypeAlias = Verdict | Departed | Lost

_MOST = 1 << 20
"""Bytes that it may have; what comes later is not kept."""


class LastWords:
    """One process's view of it; without a file nothing is kept, and nothing heard."""

    def __init__(self, file: Descriptor | None = None) -> None:
        self.file = file
        """All share one open file, which appends: so lines never lie in one another."""
        self._first: dict[str, Fault] = {}
        self._read = 0
        self._unheard: list[Words] = []

    @classmethod
    def new(cls) -> LastWords:
        """Return an empty one; one without a file where none can be made."""
        try:
            import fcntl

            file = Descriptor(create_file(0, "stretto-words"))
            fcntl.fcntl(file.number, fcntl.F_SETFL, os.O_APPEND)
        except (ImportError, OSError, SharedMemoryError):
            return cls()
        return cls(file)

    def say(self, words: Words) -> None:
        """Add a line."""
        if self.file is None:
            return
        line = json.dumps(messages.to_body(words)).encode() + b"\n"
        with suppress(OSError):
            if os.fstat(self.file.number).st_size < _MOST:
                os.write(self.file.number, line)

    def settle(self, group: str, fault: Fault) -> Fault:
        """Return the verdict on a group: the first that was said, or else this."""
        self._look()
        if group not in self._first:
            self.say(
                Verdict(
                    group=group, error=fault.error, text=fault.text, blamed=fault.blamed
                )
            )
            self._look()
        return self._first.get(group, fault)

    def hear(self) -> list[Words]:
        """Return what was said since this was last asked."""
        self._look()
        found, self._unheard = self._unheard, []
        return found

    def _look(self) -> None:
        for words in self._new():
            self._unheard.append(words)
            if isinstance(words, Verdict):
                self._first.setdefault(words.group, said_fault(words))

    def _new(self) -> Iterator[Words]:
        """Yield what was added since this was last asked."""
        if self.file is None:
            return
        data = b""
        with suppress(OSError, MemoryError):  # it is asked again
            number = self.file.number
            data = os.pread(number, os.fstat(number).st_size - self._read, self._read)
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            with suppress(ValueError, AttributeError):
                words = messages.read(Frame(body=json.loads(line)))
                if isinstance(words, Words):
                    yield words

    def with_file(self, held: tuple[Descriptor, ...]) -> tuple[Descriptor, ...]:
        """Return the descriptors that travel with a welcome, and this file after."""
        return held if self.file is None else (*held, self.file)

    def close(self) -> None:
        """Give this process's descriptor back."""
        if self.file is not None:
            self.file.close()
            self.file = None
