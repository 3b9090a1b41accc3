"""Who is let in: users, secrets, folders."""

import os
import socket
import time

import pytest

from stretto.errors import CollectiveTimeout, RendezvousError
from stretto.fabric import address
from stretto.fabric.hosts import is_same_host
from stretto.fabric.meeting import join
from stretto.fabric.meeting.environment import Place
from stretto.fabric.process import exit_words, uid_refusal
from stretto.fabric.secret import load_secret

SECRET = b"sixteen bytes or more"


@pytest.mark.parametrize("theirs", [0, 1001, 4294967295, None])
def test_another_user_is_refused(theirs):
    """Not even root, and nobody whose user cannot be told."""
    assert "only our own may join" in uid_refusal(theirs, 1000)


def test_our_own_user_is_let_in():
    """The same uid is no reason to refuse."""
    assert uid_refusal(1000, 1000) is None


def test_no_secret_is_refused_with_the_way_out():
    """The text names the variable."""
    with pytest.raises(RendezvousError, match="STRETTO_SECRET_FILE"):
        load_secret({})


def test_a_secret_others_can_read_is_refused(tmp_path):
    """Mode 0600 or nothing."""
    file = tmp_path / "secret"
    file.write_bytes(SECRET)
    file.chmod(0o644)

    with pytest.raises(RendezvousError, match="mode 644 lets others read"):
        load_secret({"STRETTO_SECRET_FILE": str(file)})
    file.chmod(0o600)
    assert SECRET == load_secret({"STRETTO_SECRET_FILE": str(file)})


def test_a_short_or_missing_secret_is_refused(tmp_path):
    """Sixteen bytes at least."""
    file = tmp_path / "secret"
    with pytest.raises(RendezvousError, match="cannot read it"):
        load_secret({"STRETTO_SECRET_FILE": str(file)})
    file.write_bytes(b"short\n")
    file.chmod(0o600)

    with pytest.raises(RendezvousError, match="5 bytes; want at least 16"):
        load_secret({"STRETTO_SECRET_FILE": str(file)})


def test_the_folder_for_sockets_is_ours_alone(tmp_path, monkeypatch):
    """It is made, or made private."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "stretto").mkdir(mode=0o755)

    assert 0o700 == address.folder().stat().st_mode & 0o777


def test_a_folder_that_is_a_link_is_refused(tmp_path, monkeypatch):
    """Nobody redirects us elsewhere."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "stretto").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RendezvousError, match="is not a folder of uid"):
        address.folder()


def test_the_socket_is_ours_alone(tmp_path):
    """Mode 0600, also under an open umask."""
    path = tmp_path / "s.sock"
    before = os.umask(0)
    try:
        sock = address.listen(path)
    finally:
        os.umask(before)

    assert 0o600 == path.stat().st_mode & 0o777
    with pytest.raises(RendezvousError, match="another job already meets"):
        address.listen(path)
    sock.close()


def test_a_socket_nobody_serves_is_a_tombstone_and_gives_way(tmp_path):
    """Made after we started, it means that our hub has died."""
    path = tmp_path / "s.sock"
    assert not address.is_tombstone(path, None)
    address.listen(path).close()

    assert address.reach(path) is None
    assert address.is_tombstone(path, None)
    assert address.is_deserted(path)
    address.listen(path).close()


def test_a_hub_that_is_flooded_is_not_taken_for_dead(tmp_path):
    """Its backlog is full, but it is there."""
    path = tmp_path / "s.sock"
    hub = address.listen(path, backlog=1)
    strangers = [socket.socket(socket.AF_UNIX) for _ in range(9)]
    for stranger in strangers:
        stranger.setblocking(False)
        stranger.connect_ex(os.fspath(path))

    assert not address.is_deserted(path)
    for sock in (hub, *strangers):
        sock.close()
    assert address.is_deserted(path)


def test_a_job_clears_what_its_killed_processes_left(tmp_path, monkeypatch):
    """Its parts' too; not what somebody serves, and no other job's."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    jobs = ["job", "job@transfer one", "job@transfer two", "job 2", "@transfer one"]
    paths = {job: address.socket_path(job) for job in jobs}
    served = {job: address.listen(path) for job, path in paths.items()}
    for job in set(jobs) - {"job@transfer two"}:
        served[job].close()
    address.clear("job")

    assert {"job@transfer two", "job 2", "@transfer one"} == {
        job for job, path in paths.items() if path.exists()
    }
    served["job@transfer two"].close()


def test_a_rank_whose_calls_are_lost_waits_as_long_as_it_may(tmp_path, monkeypatch):
    """Rank 0 is there, on this host too; only the network takes everything."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(join, "knock", lambda *_, **__: None)
    place = Place(
        rank=1, num_ranks=2, local_rank=1, job="lost", launcher="explicit",
        address=("127.0.0.1", 29500), secret=SECRET,
    )  # fmt: skip
    with (
        address.listen(address.socket_path("lost")),
        pytest.raises(CollectiveTimeout, match="rank 0 did not come"),
    ):
        join._Search(place, 0.6, False).reach(time.monotonic() + 0.6)


def test_containers_of_one_host_are_one_host():
    """The boot id counts, where there is one; the node name is for reading."""
    assert is_same_host("box/b1", "pod/b1")
    assert not is_same_host("box/b1", "box/b2")
    assert not is_same_host("box", "other")


def test_exits_are_told_in_words():
    """Signals by name."""
    assert "was killed by SIGKILL" == exit_words(-9)
    assert "exited with status 3" == exit_words(3)
    assert "was killed by signal 99" == exit_words(-99)
