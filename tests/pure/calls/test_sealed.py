"""A store that strangers read tells them no secret; ranks learn it all the same."""

import threading

import pytest

from stretto.errors import RendezvousError
from stretto.fabric import secret as secrets_of_files
from stretto.runtime.calls.joining import published, sealed


class Store:
    """What ranks share, and everybody reads."""

    def __init__(self):
        self.texts, self.news = {}, threading.Condition()

    def set(self, key, value):
        with self.news:
            self.texts[key] = value
            self.news.notify_all()

    def get(self, key):
        with self.news:
            assert self.news.wait_for(lambda: key in self.texts, 20), key
            return self.texts[key]

    def delete_key(self, key):
        with self.news:
            return self.texts.pop(key, None)


def on_ranks(many, work):
    """Return what each rank's thread returned, or raised."""
    found = [None] * many

    def run(rank):
        try:
            found[rank] = work(rank)
        except Exception as e:
            found[rank] = e

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(many)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return found


def exchanged(store, many):
    def work(rank):
        if rank == 0:
            return sealed.give(many, "k", store.set, store.get)
        return sealed.take(rank, "k", store.set, store.get)

    return on_ranks(many, work)


def test_all_ranks_learn_the_secret_and_the_store_does_not():
    """Neither as it is nor in digits; and it is another one each time."""
    store = Store()
    found = exchanged(store, 5)
    everything = " ".join(store.texts.values())

    assert 1 == len(set(found))
    assert 32 == len(found[0])
    assert found[0].hex() not in everything
    assert found[0] != exchanged(Store(), 2)[0]


@pytest.mark.parametrize("text", ["", "nonsense", "00" * 64, "ff" * 200])
def test_what_rank_0_did_not_seal_is_refused(text):
    """With who is to blame: whoever writes to the store."""
    store = Store()
    store.set("k/for/1", text)
    store.set("k/0", f"{pow(2, 1 << 200, sealed._PRIME):x}")

    with pytest.raises(RendezvousError, match="somebody else writes to this store"):
        sealed.take(1, "k", store.set, store.get)


@pytest.mark.parametrize(
    "half", ["0", "1", f"{sealed._PRIME - 1:x}", "x", "", "f" * 999]
)
def test_halves_that_would_give_the_key_away_are_refused(half):
    """Of whichever side."""
    store = Store()
    store.set("k/1", half)
    with pytest.raises(RendezvousError, match="no half of a key"):
        sealed.give(2, "k", store.set, store.get)


def test_the_group_is_a_safe_prime():
    """A wrong digit would make keys that can be guessed."""
    for number in (sealed._PRIME, sealed._PRIME // 2):
        assert 1 == pow(3, number - 1, number) == pow(7, number - 1, number)
    assert 2048 == sealed._PRIME.bit_length()


@pytest.fixture
def spread(monkeypatch):
    """Let every rank be on a host of its own, with an address that others reach."""
    hosts = threading.local()
    monkeypatch.setattr(published, "host_id", lambda: f"host-{hosts.rank}")
    monkeypatch.setattr(published, "own_address", lambda towards="": "127.0.0.1")
    return hosts


@pytest.mark.parametrize("with_file", [False, True])
def test_ranks_on_a_store_agree_on_a_place(tmp_path, monkeypatch, spread, with_file):
    """With a file nothing of the secret is stored, not even sealed."""
    name = tmp_path / "secret"
    name.write_text("of a file, and long enough")
    name.chmod(0o600)
    if with_file:
        monkeypatch.setenv(secrets_of_files.VARIABLE, str(name))
    else:
        monkeypatch.delenv(secrets_of_files.VARIABLE, raising=False)
    store = Store()

    def work(rank):
        spread.rank = rank
        place, listener = published.agree_on(store, rank, 3)
        if listener is not None:
            listener.close()
        return place

    places = on_ranks(3, work)
    assert 1 == len({(place.address, place.job) for place in places})
    (secret,) = {place.secret for place in places}
    assert with_file == (secret == b"")
    texts = " ".join(map(str, store.texts.values()))
    assert "of a file" not in texts
    assert with_file or secret.hex() not in texts
    assert with_file != any("/key/" in key for key in store.texts)


def test_nothing_of_a_meeting_is_left_in_its_store(spread):
    """Whoever meets there again would come to the ranks that met before."""
    store = Store()

    def work(rank):
        spread.rank = 0
        published.agree_on(store, rank, 2)

    on_ranks(2, work)
    published.forget(store, 2)

    assert {} == store.texts
