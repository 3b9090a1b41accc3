"""A language model: asked only within its budget, its answers parsed, never trusted."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.pure.search.planted import Planted

from stretto.cli import main
from stretto.errors import CallError
from stretto.search import Settings
from stretto.search.evolve import SearchRun, search
from stretto.search.model.endpoint import KEY, Allowance, Endpoint
from stretto.search.model.proposing import WithModel

GOOD = "Try this:\n```\nage * 2 + count\n```\n"
ANSWERS = {
    "good": GOOD,
    "two blocks": GOOD + GOOD,
    "no block": "age * 2",
    "hostile": "```\n__import__('os').system('touch /tmp/owned')\n```",
    "deep": "```\n" + "(" * 3000 + "1" + ")" * 3000 + "\n```",
    "huge": "```\n" + "age + " * 100_000 + "1\n```",
    "empty": "",
    "unknown": "```\nagee + 1\n```",
}


def completion(text, tokens=10):
    return json.dumps(
        {"choices": [{"message": {"content": text}}], "usage": {"total_tokens": tokens}}
    ).encode()


class Fake:
    """An endpoint on loopback that answers as it is told."""

    def __init__(self):
        self.asked, self.heads, self.answer = [], [], completion(GOOD)
        self.status, self.slow = 200, 0.0
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                size = int(self.headers["Content-Length"])
                fake.asked.append(json.loads(self.rfile.read(size)))
                fake.heads.append(dict(self.headers))
                time.sleep(fake.slow)
                try:
                    self.send_response(fake.status)
                    self.send_header("Content-Length", str(len(fake.answer)))
                    self.end_headers()
                    self.wfile.write(fake.answer)
                except OSError:
                    pass  # whoever asked has gone

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        threading.Thread(target=self.server.serve_forever, args=(0.02,)).start()


@pytest.fixture
def fake():
    one = Fake()
    yield one
    one.server.shutdown()
    one.server.server_close()


def asked(fake, run=None, evals=60, **budget):
    run = run or SearchRun()
    endpoint = Endpoint(
        fake.url, "any", budget=Allowance(**budget), sleep=lambda s: None, deadline_s=5
    )
    made = WithModel(Planted(), endpoint, run)
    return search(made, Settings(evals=evals, seed=1), run=run), made, endpoint


def test_a_good_answer_is_found_and_replayed_without_the_endpoint(fake, tmp_path):
    """A good answer is found and replayed without the endpoint."""
    run = SearchRun(tmp_path / "run")
    found, _, endpoint = asked(fake, run)
    assert found.text == "age * 2 + count"
    assert endpoint.budget.used_tokens == 10 * len(fake.asked)
    count = len(fake.asked)
    again = WithModel(Planted(), None, run)
    same = search(again, Settings(evals=60, seed=1), run=run)
    assert same.text == found.text
    assert len(fake.asked) == count


@pytest.mark.parametrize("kind", [kind for kind in ANSWERS if kind != "good"])
def test_useless_answers_cost_their_budget_and_the_search_goes_on(fake, kind):
    """Useless answers cost their budget and the search goes on."""
    fake.answer = completion(ANSWERS[kind])
    found, made, endpoint = asked(fake)
    assert found.evals == 60
    assert endpoint.budget.used_tokens > 0
    assert sum(made.refusals.values()) > 0 or kind == "empty"


@pytest.mark.parametrize(
    "answer", [b"", b"nothing", b"[]", b'{"choices": 3}', b"\xff" * 99]
)
def test_what_is_no_completion_is_counted_too(fake, answer):
    """What is no completion is counted too."""
    fake.answer = answer
    _, made, endpoint = asked(fake, evals=40)
    assert endpoint.budget.used_tokens > 0
    assert any("no completion" in why for why in made.refusals)


def test_a_budget_is_not_exceeded(fake):
    """A budget is not exceeded."""
    _, made, _ = asked(fake, evals=200, calls=3)
    assert len(fake.asked) <= 3
    assert any("3 calls were made" in why for why in made.refusals)
    fake.asked.clear()
    fake.answer = completion("none", tokens=1000)
    asked(fake, evals=200, money=0.0)
    assert not fake.asked


@pytest.mark.parametrize(("status", "tries"), [(500, 3), (429, 3), (401, 1), (404, 1)])
def test_errors_of_the_server_are_said_and_some_tried_again(fake, status, tries):
    """Errors of the server are said and some tried again."""
    fake.status = status
    endpoint = Endpoint(fake.url, "any", sleep=lambda s: None)
    assert endpoint.ask("what?") is None
    assert str(status) in endpoint.failed
    assert len(fake.asked) == tries


def test_slow_and_endless_answers_end(fake):
    """Slow and endless answers end."""
    fake.slow = 1.0
    endpoint = Endpoint(fake.url, "any", sleep=lambda s: None, deadline_s=0.2)
    assert endpoint.ask("what?") is None
    assert "imeout" in endpoint.failed or "timed out" in endpoint.failed
    fake.slow, fake.answer = 0.0, b"x" * (3 << 20)
    endpoint = Endpoint(fake.url, "any", sleep=lambda s: None)
    assert endpoint.ask("what?") is None
    assert "more than" in endpoint.failed


def test_nobody_there_is_said_and_the_search_goes_on(fake):
    """Nobody there is said and the search goes on."""
    fake.server.shutdown()
    fake.server.server_close()
    found, made, _ = asked(fake, evals=30)
    assert found.evals == 30
    assert any("Connection" in why for why in made.refusals)


def test_the_key_comes_from_the_environment_and_goes_nowhere_else(fake, tmp_path):
    """The key comes from the environment and goes nowhere else."""
    run = SearchRun(tmp_path / "run")
    endpoint = Endpoint(fake.url, "any", environ={KEY: "secret-key"})
    search(WithModel(Planted(), endpoint, run), Settings(evals=40, seed=1), run=run)
    run.close()
    assert all(head["Authorization"] == "Bearer secret-key" for head in fake.heads)
    assert b"secret-key" not in (tmp_path / "run").read_bytes()


@pytest.mark.parametrize(
    "url", ["", "ftp://a/b", "no-url", "http://key@host/v1", "https://"]
)
def test_urls_that_cannot_be_asked_are_refused(url):
    """Urls that cannot be asked are refused."""
    with pytest.raises(CallError, match="--llm"):
        Endpoint(url, "any")


def test_a_search_with_a_model_is_resumed_and_replayed_without_it(
    fake, tmp_path, capsys
):
    """By its file alone; the search without a model is told beside it."""
    fake.answer = completion("```\nscore = count - age\n```")
    trace, run = tmp_path / "t.csv", str(tmp_path / "run.db")
    trace.write_text("id,size\n" + "".join(f"{i * i % 23},1\n" for i in range(200)))
    words = ["search", "cache", str(trace), "--size", "20%", "--evals", "40"]
    assert main([*words, "--llm", fake.url, "--db", run, "--json"]) == 0
    first, count = json.loads(capsys.readouterr().out), len(fake.asked)
    assert first["cost_without_model"] is not None
    assert count > 0
    assert main(["search", "resume", run, "--json"]) == 0
    assert first["found"] == json.loads(capsys.readouterr().out)["found"]
    assert main(["search", "replay", run, "--json"]) == 0
    assert 0 == json.loads(capsys.readouterr().out)["rows"][0]["differ"]
    assert count == len(fake.asked)
