"""A carrier of one's own: Unix sockets. Entry point: `unix = own_carrier:Unix`."""

# ruff: noqa: ANN001, ANN002, ANN201, ANN202, ANN204, D102

import hmac
import secrets
import select
import socket
import struct
from collections import defaultdict
from contextlib import suppress
from ctypes import string_at

from stretto import hop
from stretto.testing import carriers

HEAD = struct.Struct("=7q")  # kind, offset, bytes or value, side, three words
PUT, SIGNAL, ROOM = 1, 2, 1 << 22  # and how much may wait to be sent to a peer


class UnixHop(hop.Hop):
    """One rank's connections. What the methods do, `stretto.hop.Hop` says."""

    def __init__(self, carrier, window):
        super().__init__(carrier, window)
        self.is_armed = True  # sockets turn readable by themselves
        self._socks, self._name = {}, f"stretto-{secrets.token_hex(8)}"
        self._out, self._heard = defaultdict(bytearray), defaultdict(bytearray)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(f"\0{self._name}")
        self._listener.listen(64)

    def do_share(self):
        return {"name": self._name}

    def do_connect(self, shares, peers, within_s):
        for peer in (p for p in peers if p > self.window.rank):
            sock, name = socket.socket(socket.AF_UNIX), shares[peer]["name"]
            sock.connect(f"\0{name}")
            sock.sendall(self._hello(self.window.rank, name))
            self._socks[peer] = sock
        expected = {
            self._hello(p, self._name): p for p in peers if p < self.window.rank
        }
        for _ in self.turns(within_s, expected):
            if select.select([self._listener], [], [], 0.05)[0]:
                sock, _ = self._listener.accept()
                sock.settimeout(1.0)
                with suppress(OSError):
                    said = sock.recv(32, socket.MSG_WAITALL)
                    if said in expected:  # who else comes is a stranger
                        self._socks[expected.pop(said)] = sock
        for sock in self._socks.values():
            sock.setblocking(False)

    def _hello(self, rank, name):
        """Return what the lower rank says first: that it is one of us."""
        return hmac.digest(self.window.secret, f"{rank} to {name}".encode(), "sha256")

    def _send(self, peer, data, *head):
        if peer in self.ended or len(self._out[peer]) > ROOM:
            return False
        self._out[peer] += HEAD.pack(*head) + data
        return True

    def do_put(self, peer, lane, source, offset, nbytes):
        return self._send(
            peer, string_at(source, nbytes), PUT, offset, nbytes, *[0] * 4
        )

    def do_signal(self, peer, lane, offset, value, side, words):
        taken = self._send(peer, b"", SIGNAL, offset, value, side, *words)
        self._flush(peer)
        return taken

    def do_busy(self, which):
        asked = self._out if not which else [which - 1]
        return int(any(self._out[p] for p in asked if p not in self.ended))

    def _flush(self, peer):
        out = self._out[peer]
        with suppress(OSError):  # it is full; or gone, and `recv` says so
            while out:
                del out[: self._socks[peer].send(out)]

    def do_progress(self):
        moved = 0
        for peer, sock in self._socks.items():
            self._flush(peer)
            while peer not in self.ended:
                try:
                    got = sock.recv(1 << 16)
                except BlockingIOError:
                    break
                except OSError:
                    got = b""
                self._heard[peer] += got
                moved += len(got)
                if not self._take(self._heard[peer]):
                    self.end(peer, "it sent what makes no sense")
                elif not got:
                    self.end(peer, "it ended the connection")
        return moved

    def _take(self, heard):
        """Take what is whole; return whether it makes sense."""
        while len(heard) >= HEAD.size:
            (kind, offset, value, side, *words), end = (
                HEAD.unpack_from(heard),
                HEAD.size,
            )
            if kind == PUT:
                place, end = self.landing(offset, value), end + value
                if place is None:
                    return False
                if len(heard) < end:
                    return True
                place[:] = heard[HEAD.size : end]
            elif kind != SIGNAL or not self.raise_word(offset, value, side, *words):
                return False
            del heard[:end]
        return True

    def do_descriptors(self):
        return [sock.fileno() for sock in self._socks.values()]

    def do_close(self):
        for sock in (self._listener, *self._socks.values()):
            sock.close()

    do_forget = do_close  # a forked child has copies


class Unix(hop.Carrier):
    """What can be said of it beside its hops: it can nothing special."""

    name = "unix"

    def new_hop(self, window):
        return UnixHop(self, window)


def main() -> None:
    """Examine it."""
    carriers.check(Unix())
    print(f"{Unix.name} does all {len(carriers.CASES)} things that a carrier must do")


if __name__ == "__main__":
    main()
