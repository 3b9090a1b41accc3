"""Malformed input on the command line: exit 2 and one line, whatever it is."""

import pytest

from stretto import cli

DEEP = "[" * 100_000
FILES = {
    "a.xml": (b"\xff\x00\xfe", ""),
    "b.json": (b"\x80\x81", ""),
    "c.json": (DEEP.encode(), "nests too deeply"),
    "d.xml": (b"<a>" * 100_000, ""),
    "e.json": (b"[]", ""),
    "f.json": (b"{}", ""),
    "g.xml": (b"", ""),
    "h.txt": (b"\xff", ""),
    "i.json": (b'{"name": 1, "gpus": "x"}', ""),
}


def run(capsys, *argv):
    """Return the status and what was written to stderr."""
    try:
        status = cli.main(list(argv))
    except SystemExit as e:
        status = e.code
    return status, capsys.readouterr().err


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_programs(tmp_path, capsys, name):
    """Binary, deep, empty, or of another kind; in words of ours."""
    path = tmp_path / name
    data, why = FILES[name]
    path.write_bytes(data)
    status, said = run(capsys, "show", str(path))

    assert 2 == status
    assert 1 == len(said.strip().splitlines())
    assert why in said


@pytest.mark.parametrize("ranks", ["0", "-1", "\u00b2", "1-9", "99999999999", "x", ""])
def test_numbers_of_ranks_of_show(capsys, ranks):
    """It never shows another number than was asked for."""
    status, said = run(capsys, "show", "all_reduce/ring", f"--ranks={ranks}")

    assert 2 == status
    assert "want a number from 1 to" in said


@pytest.mark.parametrize("form", [(), ("--plan",), ("--svg", "{svg}")])
@pytest.mark.parametrize(
    "words",
    [
        ("--schedule", "nonsense"),
        ("--schedule", "blocks=many"),
        ("--schedule", "blocks=0"),
        ("--schedule", "copy:nonsense"),
        ("--op", "summe"),
        ("--dtype", "flot32"),
    ],
)
def test_words_of_show(tmp_path, capsys, form, words):
    """A word that means nothing is an error, whatever is shown."""
    form = [part.format(svg=tmp_path / "a.svg") for part in form]
    status, said = run(capsys, "show", "all_reduce/ring", "--ranks=2", *form, *words)

    assert 2 == status
    assert words[1].split(":")[-1] in said
    assert 1 == len(said.strip().splitlines())
    assert not (tmp_path / "a.svg").exists()


@pytest.mark.parametrize(
    "ranks", ["\u00b2", "1-99999999999", "4-2", "0", "-", "1,,2", "\u0663"]
)
def test_numbers_of_ranks_of_bound(capsys, ranks):
    """Neither digits of other scripts nor all the memory there is."""
    status, said = run(capsys, "verify", "all_reduce/ring", f"--ranks={ranks}")

    assert 2 == status
    assert 1 == len(said.strip().splitlines())


def test_a_machine_file_of_any_depth(tmp_path, capsys):
    """TOML, too."""
    path = tmp_path / "m.toml"
    path.write_text("a = " + DEEP)
    status, _ = run(
        capsys, "simulate", "all_reduce/ring", "--machine", str(path), "--sizes", "8"
    )

    assert 2 == status


@pytest.mark.parametrize(
    "words",
    [
        "bench matrix --traffic", "bench all_reduce --compare absent.toml",
        "bound all_reduce --machine", "cc show", "cluster dags", "cluster run",
        "cluster shifts", "search cache", "search config", "search prefetch",
        "search selector", "search traces", "simulate all_reduce/ring --machine",
        "trace report", "tune --fit",
    ],
)  # fmt: skip
def test_a_file_that_is_not_there_is_named_once_without_numbers(
    words, tmp_path, monkeypatch, stretto
):
    """Every command says alike that a file is not there."""
    monkeypatch.chdir(tmp_path)
    status, _, err = stretto(*words.split(), "absent.toml")
    assert status == 2
    assert ": absent.toml: No such file or directory" in err
    assert err.startswith(f"stretto {words.split()[0]}: absent.toml: ")
    assert err.count("absent.toml") == 1
    assert "Errno" not in err
