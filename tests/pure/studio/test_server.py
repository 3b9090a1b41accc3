"""The server, in this process: who may read, what is answered, what is told live."""

import contextlib
import http.client
import json
import threading
import time
from dataclasses import replace

import pytest
from tests.pure.studio.made import recording

from stretto.errors import CallError
from stretto.studio import NamedInputs, Studio, StudioServer, follow
from stretto.studio.serve.pack import unpack
from stretto.trace import STATES, write


@pytest.fixture
def served(tmp_path):
    """Return a server of one recording, and its file."""
    path = tmp_path / "run.trace"
    write(path, recording(4, 9))
    studio = Studio(NamedInputs(recordings=(path,)))
    studio.refresh()
    server = StudioServer(studio)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server, path
    server.stop()
    thread.join(10)


def get(server, path, *, method="GET", token=True, host="", **headers):
    """Return status, headers and body."""
    port = server.access.port
    if token:
        headers["Authorization"] = f"Bearer {server.access.token}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", host or f"127.0.0.1:{port}")
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


def test_it_listens_on_this_machine_only(served):
    """Nobody else can connect."""
    server, _ = served

    assert "127.0.0.1" == server.server_address[0]
    assert server.address.startswith("http://127.0.0.1:")


PATHS = ("/", "/index", "/view/table", "/web/app.js", "/ask?q=traffic", "/events")


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_the_token(served, path):
    """Nor with another one, nor part of it."""
    server, _ = served
    for headers in (
        {},
        {"Authorization": "Bearer no"},
        {"Authorization": f"Bearer {server.access.token[:-1]}"},
        {"Cookie": f"{server.access.cookie}=no"},
        {"Cookie": "\x00;;==,"},
    ):
        status, _, body = get(server, path, token=False, **headers)

        assert 401 == status
        assert {"error": "want the token that was printed"} == json.loads(body)
    assert 401 == get(server, "/?token=no", token=False)[0]


def test_the_printed_address_leaves_a_cookie_that_opens_the_page(served):
    """The token does not stay in the address; scripts cannot read it."""
    server, _ = served
    path = "/" + server.address.partition("/")[2].partition("/")[2].partition("/")[2]
    status, headers, leads = get(server, path, token=False)
    cookie = headers["Set-Cookie"]
    status2, _, body = get(server, "/", token=False, Cookie=cookie.partition(";")[0])

    assert 200 == status
    assert b"url=/" in leads
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert 200 == status2
    assert b"stretto studio" in body


def test_no_other_name_leads_here(served):
    """What a page of elsewhere may have resolved to this machine."""
    server, _ = served
    for host in ("evil.example", f"evil.example:{server.access.port}", "127.0.0.1:1"):
        assert 403 == get(server, "/index", host=host)[0]
    assert 200 == get(server, "/index", host=f"localhost:{server.access.port}")[0]


@pytest.mark.parametrize("path", [*PATHS[:-1], "/nowhere", "/view/nothing"])
def test_every_answer_says_what_a_page_may_do(served, path):
    """Scripts of this server, and nothing else."""
    server, _ = served
    headers = get(server, path)[1]

    assert "script-src 'self'" in headers["Content-Security-Policy"]
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert "nosniff" == headers["X-Content-Type-Options"]
    assert "no-store" == headers["Cache-Control"]
    assert "no-referrer" == headers["Referrer-Policy"]


@pytest.mark.parametrize(
    "path",
    [
        "/web/../studio.py",
        "/web/%2e%2e/studio.py",
        "/web/..%2fstudio.py",
        "/web/__init__.py",
        "/web//etc/passwd",
        "/etc/passwd",
        "/view/../index",
        "/index/more",
        "//evil.example/",
        "/web/views/",
    ],
)
def test_no_other_file_can_be_read(served, path):
    """Files of the page are listed; all else is nothing."""
    status, _, body = get(served[0], path)

    assert status in (400, 404)
    assert b"error" in body


def test_views_answer_and_say_what_is_wrong_with_a_question(served):
    """Arguments are checked: where, got, want."""
    server, _ = served
    index = json.loads(get(server, "/index")[2])
    for view in index["views"]:
        status, headers, body = get(server, f"/view/{view['name']}")

        assert (200, "application/octet-stream") == (status, headers["Content-Type"])
        assert unpack(body)
    status, _, body = get(server, "/view/lateness?comm=7")
    assert (400, "comm='7'; want a number from 0 to 0") == (
        status,
        json.loads(body)["error"],
    )
    status, _, body = get(server, "/view/colective")
    assert 400 == status
    assert "collective" in json.loads(body)["error"]


def test_questions_are_answered_and_refused_with_words(served):
    """The grammar's complaint is what the page shows."""
    server, _ = served

    assert b"held the others up" in get(server, "/ask?q=late%20ranks")[2]
    assert b"nothing was asked" in get(server, "/ask")[2]
    assert 501 == get(server, "/index", method="DELETE")[0]


def test_a_fault_of_ours_is_said_and_ends_nothing(served, monkeypatch):
    """The next question is answered."""
    server, _ = served
    monkeypatch.setattr(server.studio, "ask", lambda text: 1 / 0)
    status, _, body = get(server, "/ask?q=traffic")

    assert 500 == status
    assert "our fault: ZeroDivisionError" in json.loads(body)["error"]
    assert 200 == get(server, "/index")[0]


def test_what_a_growing_recording_shows_is_told_at_once(served):
    """A page that listens hears the next revision; views are then of the new file."""
    server, path = served
    connection = http.client.HTTPConnection("127.0.0.1", server.access.port, timeout=30)
    connection.request(
        "GET", "/events", headers={"Authorization": f"Bearer {server.access.token}"}
    )
    events = connection.getresponse()
    assert b"data: 1\n" == events.readline()
    stop = threading.Event()
    loader = threading.Thread(target=follow, args=(server.studio, stop, 0.02))
    loader.start()
    time.sleep(0.05)
    write(path, recording(4, 12))
    heard = [events.readline() for _ in range(2)]
    stop.set()
    loader.join(10)

    assert b"data: 2\n" in heard
    rows = unpack(get(server, "/view/table")[2])["rows"]
    assert 12 == sum(row["count"] for row in rows)
    connection.close()


def test_a_file_that_breaks_while_it_is_shown_is_said_and_the_last_one_stays(served):
    """Whoever looks keeps what was there."""
    server, path = served
    path.write_bytes(b"nothing that stretto wrote")
    server.studio.refresh()
    index = json.loads(get(server, "/index")[2])

    assert "failed" == index["state"]
    assert "does not begin as a recording" in index["failed"]
    assert 200 == get(server, "/view/table")[0]


def test_before_anything_is_loaded_the_page_says_so(tmp_path):
    """A page that is early waits; it does not fail."""
    studio = Studio(NamedInputs(recordings=(tmp_path / "none.trace",)))

    assert "loading" == studio.index()["state"]
    with pytest.raises(CallError, match="still loading"):
        studio.view("table", {})
    studio.refresh()
    assert "No such file" in studio.index()["failed"]


def test_each_view_is_computed_once(served, monkeypatch):
    """Whoever asks again gets the same bytes."""
    studio = served[0].studio
    first = studio.view("table", {})

    assert studio.view("table", {}) is first
    assert studio.view("lateness", {"from": "2"}) != studio.view("lateness", {})


def test_recordings_with_little_in_them_are_shown(tmp_path):
    """One rank; no steps; no calls; nothing: every view has something to say."""
    whole = recording(2, 3)
    for at, made in enumerate(
        (
            recording(1, 3),
            replace(whole, steps=whole.steps[:0]),
            replace(whole, calls=whole.calls[:0]),
            replace(whole, calls=whole.calls[:0], steps=whole.steps[:0]),
            replace(recording(1, 1), comms=(), kinds=(), calls=whole.calls[:0],
                    steps=whole.steps[:0], ranks=()),
            replace(whole, calls=whole.calls[:1]),
        )
    ):  # fmt: skip
        path = tmp_path / f"{at}.trace"
        write(path, made)
        studio = Studio(NamedInputs(recordings=(path, path)))
        studio.refresh()
        assert "ready" == studio.index()["state"], studio.index()
        for view in studio.index()["views"]:
            with contextlib.suppress(CallError):  # said, where there is nothing
                assert unpack(studio.view(view["name"], {}))


def test_calls_that_nobody_timed_have_no_times(tmp_path):
    """What was only enqueued, on a GPU: counted, and not shown as taking nothing."""
    made = recording(2, 6, steps_a_call=0)
    calls = made.calls.copy()
    calls["state"], calls["start"], calls["end"] = STATES.index("enqueued"), 0, 0
    path = tmp_path / "gpu.trace"
    write(path, replace(made, calls=calls))
    studio = Studio(NamedInputs(recordings=(path, path)))
    studio.refresh()
    rows = unpack(studio.view("table", {}))["rows"]

    assert [2, 2, 2] == [row["count"] for row in rows]
    assert {None} == {
        row[k] for row in rows for k in ("p50_us", "p99_us", "busbw_gbps")
    }
    assert {0} == {row["unfinished"] for row in rows}
    assert "nobody timed its calls" in studio.ask("times")["text"]
    assert "waiting" not in [view["name"] for view in studio.index()["views"]]
    assert not any("ratio" in row for row in unpack(studio.view("compare", {}))["rows"])
