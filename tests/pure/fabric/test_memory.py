"""Shared memory: files without a name, mapped, growing, and given back."""

import gc
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from tests.shared_names import shared_names

from stretto.errors import SharedMemoryError
from stretto.fabric import memory
from stretto.fabric.memory import (
    PAGE,
    Mapping,
    Reservation,
    Shared,
    create_file,
    open_file,
    prefault,
)


def test_a_file_is_shared_and_has_no_name():
    """Two mappings of one file show the same bytes; no directory lists it."""
    before = shared_names()
    fd = create_file(8192)
    one, two = Mapping(fd, 8192), Mapping(fd, 8192)
    os.close(fd)

    one.words(4096, 2)[1] = 42

    assert 42 == two.words(4096, 2)[1]
    assert before == shared_names()


def test_words_keep_their_mapping():
    """An array of a mapping that nobody else refers to can still be read."""
    fd = create_file(4096)
    words = Mapping(fd, 4096).words(0, 4)
    os.close(fd)
    gc.collect()

    words[3] = 7

    assert [0, 0, 0, 7] == words.tolist()


def test_memory_that_does_not_fit_is_refused_with_the_limit():
    """The message says how much there is in all, and what to do."""
    place, fd = Reservation(PAGE), create_file(2 * PAGE)
    try:
        with pytest.raises(SharedMemoryError, match=f"want at most {PAGE} a comm"):
            place.append(fd, 2 * PAGE)
    finally:
        os.close(fd)


def test_addresses_are_reserved_when_the_first_file_comes():
    """Fewer than were wanted, where limits leave no more: down to what must be."""
    place, fd = Reservation(1 << 60, PAGE), create_file(PAGE)
    try:
        assert 0 == place.address == place.used
        place.append(fd, PAGE)
        assert PAGE == place.used
        assert PAGE < place.nbytes < 1 << 60
        assert place.address
        with pytest.raises(SharedMemoryError):
            Reservation(1 << 60).append(fd, PAGE)
    finally:
        os.close(fd)


def held():
    """Return the descriptors of this process, and its shared mappings."""
    maps = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    mine = [line for line in maps if "/memfd:test-memory" in line]
    return len(list(Path("/proc/self/fd").iterdir())), len(mine)


def test_a_mapping_needs_no_descriptor_and_goes_with_who_reads_it():
    """Also of a part of a file; what is still read stays mapped."""
    before = held()
    fd = create_file(3 * PAGE, "test-memory")
    whole, part = Shared.of_peer(3 * PAGE, os.dup(fd)), Mapping(fd, PAGE, 2 * PAGE)
    os.close(fd)
    assert (before[0], before[1] + 2) == held()

    last = whole.array[2 * PAGE :]
    part.array[5] = 7
    del whole, part
    gc.collect()

    assert 7 == last[5]
    assert (before[0], before[1] + 1) == held()
    del last
    gc.collect()
    assert before == held()


def test_nobody_can_shrink_a_file_that_others_map():
    """Who maps it would be killed; it may grow."""
    fd = create_file(PAGE)
    try:
        os.ftruncate(fd, 2 * PAGE)
        with pytest.raises(PermissionError):
            os.ftruncate(fd, PAGE)
    finally:
        os.close(fd)


def test_a_file_smaller_than_was_said_is_refused_and_closed():
    """Its maker does not know what it says; nothing of the attempt is left."""
    before = held()
    with pytest.raises(SharedMemoryError, match="4096 bytes; its owner said 8192"):
        Shared(8192, create_file(4096))

    assert before == held()


def test_a_file_with_a_name_is_its_owners_and_has_room(tmp_path):
    """It keeps what it has; a larger one grows, a new one is empty."""
    path = tmp_path / "kept"
    one = Shared(PAGE, open_file(path, PAGE))
    one.array[:4] = 1, 2, 3, 4
    one.close()
    two = Shared(2 * PAGE, open_file(path, 2 * PAGE))
    two.close()

    assert [1, 2, 3, 4, 0] == two.array[:5].tolist()
    assert 0o600 == path.stat().st_mode & 0o777
    assert path.stat().st_blocks * 512 >= 2 * PAGE
    os.close(open_file(path, is_new=True))
    assert 0 == path.stat().st_size


def test_a_full_file_system_is_an_error_and_kills_nobody(tmp_path):
    """Who wrote there later would be: the file says at once that it has no room."""
    full = os.statvfs("/dev/shm")
    path = Path("/dev/shm") / f"stretto-test-{os.getpid()}-{threading.get_ident()}"
    before = held()
    try:
        with pytest.raises(SharedMemoryError, match=r"No space left.*; want that much"):
            open_file(path, 2 * full.f_frsize * full.f_blocks)
    finally:
        path.unlink()
    with pytest.raises(SharedMemoryError, match="none/here of 4096 bytes: No such"):
        open_file(tmp_path / "none" / "here", 4096)

    assert before == held()


def test_pages_that_there_is_no_memory_for_are_an_error():
    """Not a signal: here those behind the end of a file."""
    fd = create_file(PAGE)
    mapped = Mapping(fd, 4 * PAGE)
    os.close(fd)
    with pytest.raises(SharedMemoryError, match=f"pages of {4 * PAGE} bytes: "):
        prefault(mapped.address, 4 * PAGE)


@pytest.mark.parametrize("call", ["mmap", "memfd"])
def test_what_is_made_in_part_is_given_back(monkeypatch, call):
    """No descriptor is left where a mapping, or a file, cannot be had."""

    def full(*given, **named):
        raise OSError(12, "Cannot allocate memory")

    def none(*given):
        raise SharedMemoryError("no addresses")

    before = held()
    if call == "mmap":
        monkeypatch.setattr(memory, "_mmap", none)
    else:
        monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(SharedMemoryError):
        Shared(PAGE)

    assert before == held()


def test_an_array_of_shared_memory_is_shared():
    """What one mapping writes, another reads."""
    one = Shared(PAGE)
    two = Shared.of_peer(PAGE, os.dup(one.fd))
    one.array.view(np.int64)[3] = 9
    one.close()
    one.close()

    assert 9 == two.words(24, 1)[0]
