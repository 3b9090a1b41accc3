"""The command `stretto studio`: what it writes, what it refuses."""

import re
import threading
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from tests.pure.studio.made import recording

from stretto import cli
from stretto.cli import studio as command
from stretto.studio.serve import opening
from stretto.trace import write


def test_an_export_is_one_file(tmp_path, capsys):
    """Of a recording; of a program of the catalogue, simulated."""
    path, page = tmp_path / "a.trace", tmp_path / "a.html"
    write(path, recording(4, 5))

    assert 0 == cli.main(["studio", str(path), "--export", str(page)])
    assert re.match(r".*a\.html: [\d.]+ MB, opens", capsys.readouterr().out)
    assert "stretto studio" in page.read_text()
    program = ["--program", "all_reduce/ring", "--machine", "h200x4", "--size", "64K"]
    assert 0 == cli.main(["studio", *program, "--export", str(page)])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "nothing to show; want a RECORDING, --program, --tune or --search"),
        (["none.trace", "--export", "x.html"], "none.trace: No such file"),
        (["a", "b", "c", "--export", "x.html"], "3 recordings; want one, or two"),
        (["--tune", "none.json", "--export", "x.html"], "none.json: No such file"),
        (["--program", "all_reduce/rign"], "no algorithm named"),
        (["a", "--port", "99999"], "--port 99999; want a number below 65536"),
        (["a", "--schedule", "pusch"], "pusch"),
        (["a", "--machine", "moon", "--export", "x.html"], "moon"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_a_line(
    args, said, capsys, tmp_path, monkeypatch
):
    """Before anything is served."""
    monkeypatch.chdir(tmp_path)
    write("a", recording(2, 2))
    status = cli.main(["studio", *args])
    error = capsys.readouterr().err

    assert status in (1, 2)
    assert said in error
    assert 1 == error.count("\n")
    assert not (tmp_path / "x.html").exists()


def test_it_prints_the_address_and_serves_until_it_is_stopped(tmp_path, monkeypatch):
    """The address opens the page; without its token nothing does.

    A browser is given a file that leads there: others may read its command line.
    """
    path = tmp_path / "a.trace"
    write(path, recording(2, 3))
    servers, opened = [], []
    made = command.StudioServer

    def remembered(*args):
        servers.append(made(*args))
        return servers[-1]

    monkeypatch.setattr(command, "StudioServer", remembered)
    monkeypatch.setattr(opening.webbrowser, "open", opened.append)
    thread = threading.Thread(target=cli.main, args=(["studio", str(path)],))
    thread.start()
    while not opened:
        thread.join(0.01)
    page = Path(urllib.parse.urlsplit(opened[0]).path)
    assert servers[0].access.token not in opened[0]
    assert 0o600 == page.stat().st_mode & 0o777
    (address,) = re.findall(r'<a href="([^"]+)"', page.read_text())
    home = address.partition("?")[0]
    cookies = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
    for where in (address, home):
        with cookies.open(where, timeout=30) as answer:
            assert b"stretto studio" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(home, timeout=30)
    servers[0].stop()
    thread.join(30)

    assert not thread.is_alive()
    assert not page.exists()
