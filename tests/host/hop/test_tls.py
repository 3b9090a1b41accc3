"""Hosts that encrypt what goes between them, with certificates of the job's own CA."""

import contextlib
import random
import select
import shutil
import socket
import ssl
import struct
import subprocess
import threading

import pytest
from tests.soon import soon
from tests.waiting import until

from stretto.fabric import tls

pytestmark = [
    pytest.mark.host,
    pytest.mark.timeout(120),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl"),
]
RESET = struct.pack("ii", 1, 0)

CALLS = """
comm = connect()
n, r = comm.num_ranks, comm.rank
for count in (1, 3000, 400_000):
    x = np.arange(count, dtype=np.float32) + r
    whole = np.arange(count, dtype=np.float32) * n + n * (n - 1) / 2
    assert np.array_equal(comm.all_reduce(x.copy()), whole)
import socket
ways = comm._session("cpu")._way._hop._sockets.values()
assert {way.family for way in ways} == {socket.AF_UNIX}  # the thread's, which encrypts
say(comm.hosts)
comm.close()
"""
CONNECTS = """
try:
    connect(SECONDS)
except StrettoError as e:
    say(e)
"""


def connects():
    """Return what a rank does that hears of an error, in time on a busy machine too.

    Rank 0 waits for longer: who waits in vain for its greeting hangs up in the end.
    """
    return CONNECTS.replace("SECONDS", f"{soon(2.0)} * (2 - rank)")


def openssl(*words, cwd):
    subprocess.run(["openssl", *words], cwd=cwd, check=True, capture_output=True)


def authority(folder, name):
    """Make a CA, and a folder with a certificate of it for every host."""
    made = folder / name
    made.mkdir()
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *kind, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2",
            "-subj", f"/CN={name}", cwd=made)  # fmt: skip
    openssl("req", *kind, "-keyout", "key.pem", "-out", "cert.csr", "-subj", "/CN=rank",
            cwd=made)  # fmt: skip
    openssl("x509", "-req", "-in", "cert.csr", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", "cert.pem", "-days", "2", cwd=made)  # fmt: skip
    (made / "key.pem").chmod(0o600)
    return str(made)


def test_calls_are_right_over_tls(start, tmp_path):
    """The hub's connections and the carrier's, both."""
    folder = authority(tmp_path, "job")
    job = start((0, 0, 1, 1), CALLS, STRETTO_TLS=folder)
    out, err = job.end(100)

    assert ["(0, 0, 1, 1)"] * 4 == [line.strip() for line in out], err


def test_a_host_with_a_certificate_of_another_ca_is_told_so(start, tmp_path):
    """On both sides, in words of TLS, and what to do."""
    ours, theirs = authority(tmp_path, "job"), authority(tmp_path, "other")
    own = {"rank0": {"STRETTO_TLS": ours}, "rank1": {"STRETTO_TLS": theirs}}
    zero, one = start((0, 1), connects(), **own).hear_all()

    assert "TLS: " in one
    assert "certificates of one CA" in one
    assert "TLS: " in zero


def test_a_host_without_tls_is_not_let_in(start, tmp_path):
    """And rank 0 says why."""
    own = {"rank0": {"STRETTO_TLS": authority(tmp_path, "job")}}
    zero, one = start((0, 1), connects(), **own).hear_all()

    assert "TLS: " in zero
    assert "rank 0" in one


@pytest.mark.parametrize("lacks", ["key.pem", "ca.pem"])
def test_files_that_are_not_there_are_named(start, tmp_path, lacks):
    """Before anybody is waited for."""
    folder = authority(tmp_path, "job")
    (tmp_path / "job" / lacks).unlink()
    job = start((0, 1), connects(), STRETTO_TLS=folder)

    assert "want a folder of cert.pem, key.pem, ca.pem" in job.hear(0)


@pytest.fixture
def joined(tmp_path, monkeypatch):
    """Return what makes two encrypted ends in this process, closed at the end."""
    monkeypatch.setenv("STRETTO_TLS", authority(tmp_path, "job"))
    made = []

    def join():
        with socket.create_server(("127.0.0.1", 0)) as server:
            ends = socket.create_connection(server.getsockname()), server.accept()[0]
        pair = [tls.secured(s, server=bool(nth)) for nth, s in enumerate(ends)]
        made.extend(pair)
        for end in pair:
            end.setblocking(True)
            end.settimeout(20)
        return pair

    yield join
    for end in made:
        end.close()


def goes_through(ends):
    """Assert that bytes go both ways."""
    for here, there in (ends, ends[::-1]):
        here.sendall(b"x" * 100_000)
        left = 100_000
        while left:
            left -= len(there.recv(left))


@pytest.mark.parametrize("nbytes", [1, 5000, 300_000])
@pytest.mark.parametrize("reads", [0, 1])
def test_who_closes_upon_noise_ends_one_connection(joined, nbytes, reads):
    """What is closed with something unread is reset; all others go on."""
    steady = joined()
    goes_through(steady)
    for closing in (0, 1):
        ends = joined()
        goes_through(ends)
        ends[1 - closing].settimeout(0.2)
        with contextlib.suppress(TimeoutError):
            ends[1 - closing].sendall(b"noise" * nbytes)
        for _ in range(reads):
            ends[closing].recv(1)
        until(lambda end=ends[closing]: select.select([end], [], [], 0)[0])
        ends[closing].close()
        goes_through(steady)
        goes_through(joined())


def test_whatever_goes_wrong_in_one_connection_the_others_go_on(joined, monkeypatch):
    """Also what nobody has thought of; and why it ended is known."""
    steady, odd = joined(), joined()
    goes_through(odd)
    move, number = tls._Link.move, odd[0].fileno()

    def moved(link):
        if link._number == number:
            raise RuntimeError("odd")
        move(link)

    monkeypatch.setattr(tls._Link, "move", moved)
    odd[1].sendall(b"x")

    assert b"" == odd[0].recv(1)
    assert "RuntimeError: odd" in tls.reason(odd[0])
    goes_through(steady)


def intrude(sock, context, rng):
    """Make noise of some kind, and leave in some way."""
    with contextlib.suppress(OSError):
        sock.settimeout(5)
        if rng.random() < 0.6:
            sock = context.wrap_socket(sock)
        sock.settimeout(0.2)
        sock.sendall(rng.randbytes(rng.choice([1, 5, 1000, 300_000, 600_000])))
        if rng.random() < 0.5:
            sock.recv(1)
    with contextlib.suppress(OSError):
        if rng.random() < 0.5:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    sock.close()


def test_whatever_strangers_do_the_others_go_on(joined, tmp_path):
    """Noise before, in and after the handshake; resets at either end, at any time."""
    rng, steady, folder = random.Random(7), joined(), tmp_path / "job"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    context.load_verify_locations(folder / "ca.pem")
    with socket.create_server(("127.0.0.1", 0)) as door:
        for _ in range(60):
            raw = socket.create_connection(door.getsockname())
            noise = random.Random(rng.random())
            comer = threading.Thread(target=intrude, args=(raw, context, noise))
            comer.start()
            near, _ = door.accept()
            with contextlib.suppress(OSError), tls.secured(near, server=True) as ours:
                ours.settimeout(rng.choice([0.001, 0.05]))
                ours.recv(rng.choice([1, 8, 100_000]))
            comer.join(20)
            goes_through(steady)
