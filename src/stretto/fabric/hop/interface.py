"""By which address a host is reached, and at which ports: by route, or as users say."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Mapping, Sequence
from contextlib import suppress

from stretto.errors import RendezvousError
from stretto.fabric.variables import text_of

INTERFACE, PORTS = "STRETTO_INTERFACE", "STRETTO_PORTS"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR
_DISCARD = 9


def address_towards(host: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the address of this host that a route to another host begins with."""
    named = text_of(INTERFACE, "", environment).split(",")[0]
    if named:
        return _address_of(named)
    try:
        found = socket.getaddrinfo(host, _DISCARD, type=socket.SOCK_DGRAM)
        family, kind, _, _, where = found[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)  # sends nothing: it asks the table of routes
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError) as e:
        raise RendezvousError(
            f"no route from {socket.gethostname()} to {host}: {e}; name the network's "
            f"interface in {INTERFACE}"
        ) from e


def rails_of(
    named: Sequence[str], towards: str, environment: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """Return the addresses of this host that lanes go by.

    `named` are interfaces or addresses, "all" is each interface but loopback; none are
    those of the variable, which may name several, or the one that a route begins with.
    """
    said = text_of(INTERFACE, "", environment)
    asked = list(named) or [n for n in said.split(",") if n]
    if asked == ["all"]:
        asked = list(addresses().values())
    found = tuple(dict.fromkeys(_address_of(name) for name in asked))
    return found or (address_towards(towards, {}),)


def _address_of(named: str) -> str:
    known = [name for _, name in socket.if_nameindex()]
    if named not in known:
        try:
            with socket.socket(
                socket.AF_INET6 if ":" in named else socket.AF_INET
            ) as s:
                s.bind((named, 0))
                return named
        except OSError:
            raise RendezvousError(
                f"{INTERFACE}={named}: {socket.gethostname()} has no such interface or "
                f"address; it has {', '.join(known)}"
            ) from None
    try:
        return _address_at(named)
    except OSError as e:
        raise RendezvousError(
            f"{INTERFACE}={named}: it has no IPv4 address ({e.strerror}); give the "
            f"address itself"
        ) from None


def addresses() -> dict[str, str]:
    """Return the addresses of this host by interface, but for loopback."""
    found = {}
    for _, name in socket.if_nameindex():
        with suppress(OSError):
            address = _address_at(name)
            if not address.startswith("127."):
                found[name] = address
    return found


def interface_of(address: str) -> str:
    """Return the interface of this host that has an IPv4 address, or nothing."""
    for _, name in socket.if_nameindex():
        with suppress(OSError):
            if _address_at(name) == address:
                return name
    return ""


def _address_at(interface: str) -> str:
    """Return the IPv4 address of an interface, or raise OSError."""
    import fcntl

    asked = struct.pack("256s", interface.encode()[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        answer = fcntl.ioctl(probe.fileno(), _GET_ADDRESS, asked)
    return socket.inet_ntoa(answer[20:24])


def listen(host: str, environment: Mapping[str, str] | None = None) -> socket.socket:
    """Listen at an address, at any port, or at one of those that users name."""
    env = os.environ if environment is None else environment
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    ports = _ports(env.get(PORTS, ""))
    for port in ports:
        try:
            return socket.create_server((host, port), family=family, backlog=256)
        except OSError as e:
            if not env.get(PORTS):
                raise RendezvousError(f"cannot listen at {host}: {e}") from e
    raise RendezvousError(
        f"{PORTS}={env[PORTS]}: all of these ports are in use at {host}; want one for "
        f"each communicator of each rank of this host"
    )


def _ports(text: str) -> range:
    if not text:
        return range(1)
    low, _, high = text.partition("-")
    is_number = text.isascii() and len(text) < len("65535-65535") + 1
    if is_number and low.isdigit() and (high or low).isdigit():
        ports = range(int(low), int(high or low) + 1)
        if ports and ports[0] > 0 and ports[-1] < 1 << 16:
            return ports
    raise RendezvousError(f"{PORTS}={text[:60]!r}; want LOW-HIGH, such as 20000-20100")
