"""PyTorch's own DistributedTest, which ships in its wheel, on any backend.

    python tests/host/torch/torch_suite.py --world 2             # gloo beside stretto
    python tests/host/torch/torch_suite.py --world 4 --backend stretto -k all_reduce

The tests are decorated as for gloo, then run on the backend that is asked for; what
says that gloo had better not run it (`__unittest_skip__`) is run, too. Ranks are forked
once and keep running test after test; a test that fails, hangs or ends its process
costs that set of ranks, and the next test gets new ones.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import io
import json
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import traceback
import types
import unittest
from collections import Counter
from datetime import timedelta
from pathlib import Path

NO_LONGER_S = 120.0
_forking = multiprocessing.get_context("fork")


def load(world: int):
    """Import torch's tests, decorated for gloo, as one class."""
    os.environ.update(BACKEND="gloo", WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("TEMP_DIR", tempfile.gettempdir())
    try:
        importlib.import_module("expecttest")
    except ImportError:  # only its TestCase is used
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stand_in
    from torch.testing._internal.distributed import distributed_test as suite

    base = suite.DistributedTest._DistTestBase
    kind = type("DistributedSuite", (suite.TestDistBackend, base), {})
    names = list(unittest.TestLoader().getTestCaseNames(kind))
    return suite, kind, names


def run_one(suite, kind, name: str, rank: int, backend: str, world: int, temp: str):
    """Run one test on this rank; return what came of it, and a text."""
    import torch.distributed as dist
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_distributed import TEST_SKIPS

    codes = {skip.exit_code: skip.message for skip in TEST_SKIPS.values()}
    os.environ["TEMP_DIR"] = temp
    os.environ["INIT_METHOD"] = f"file://{temp}/init_dir/shared_init_file"
    suite.Barrier.barrier_id = 0
    case = kind(name)
    case.rank, case.file_name = rank, f"{temp}/store"
    case.skip_return_code_checks, case.special_return_code_checks = [], {}
    said = io.StringIO()
    try:
        limit = suite.CUSTOM_PG_TIMEOUT.get(name, suite.default_pg_timeout)
        dist.init_process_group(
            backend,
            init_method=f"file://{temp}/store",
            world_size=world,
            rank=rank,
            timeout=timedelta(seconds=limit),
        )
        common_utils.set_rng_seed(1234)
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            case._barrier()
            getattr(case, name)()
            case._barrier()
        with contextlib.suppress(AssertionError, ValueError):  # the test may have
            dist.destroy_process_group()
    except unittest.SkipTest as e:
        outcome = "skipped", str(e)
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else -1
        passed = code == 0
        outcome = ("passed" if passed else "skipped", codes.get(code, ""))
        if not passed and code not in codes:
            outcome = "failed", f"exit {e.code}"
    except BaseException:
        outcome = "failed", traceback.format_exc()
    else:
        outcome = "passed", ""
    if outcome[0] == "skipped":
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    gc.collect()
    return outcome


class _LikeGloo(str):
    """A backend's name, which tests that ask for gloo take as theirs."""

    def __eq__(self, other):
        return str(self) == str(other) or other == "gloo"

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__
    __slots__ = ()


def serve(suite, kind, rank: int, backend: str, world: int, pipe) -> None:
    """Be a rank: run the tests that the pipe names."""
    os.environ["RANK"] = str(rank)
    suite.BACKEND = _LikeGloo(backend)
    for names in suite.DistTestCases.backend_feature.values():
        if "gloo" in names:
            names.add(backend)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)
    os.dup2(quiet, 1)
    with contextlib.suppress(EOFError):
        while (task := pipe.recv()) is not None:
            name, temp, os.environ["MASTER_PORT"] = task
            pipe.send(run_one(suite, kind, name, rank, backend, world, temp))
    os._exit(0)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Ranks:
    """A set of forked ranks."""

    def __init__(self, suite, kind, backend: str, world: int) -> None:
        self.pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = _forking.Pipe()
            process = _forking.Process(
                target=serve, args=(suite, kind, rank, backend, world, theirs)
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, name: str) -> tuple[str, str]:
        """Return what came of a test: passed, skipped, failed, hung or died."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temp:
            port = str(_free_port())
            for folder in ("barrier", "test_dir", "init_dir"):
                (Path(temp) / folder).mkdir()
            for pipe in self.pipes:
                pipe.send((name, temp, port))
            until, found = time.monotonic() + NO_LONGER_S, []
            for pipe in self.pipes:
                if not pipe.poll(max(0.0, until - time.monotonic())):
                    found.append(("hung", f"after {NO_LONGER_S:g} s"))
                    until = min(until, time.monotonic() + 3)
                    continue
                try:
                    found.append(pipe.recv())
                except EOFError:
                    found.append(("died", "its process ended"))
        for kind in ("failed", "died", "hung", "passed", "skipped"):
            texts = [text for outcome, text in found if outcome == kind]
            if texts:
                return kind, max(texts, key=len)
        raise AssertionError("every rank has an outcome")

    def end(self) -> None:
        """End the processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join()


def _always_skipped(test) -> str:
    """Return why a test's decorators skip it here, when no rank need be asked."""
    import torch

    while test is not None:
        decorator = test.__code__.co_qualname.partition(".")[0]
        if decorator == "skip_if_no_gpu" and not torch.cuda.is_available():
            return "no GPU"
        test = getattr(test, "__wrapped__", None)
    return ""


def run(
    backend: str, world: int, only=None, *, say=print
) -> dict[str, tuple[str, str]]:
    """Run the tests (those whose name `only` takes); return what came of each."""
    suite, kind, names = load(world)
    names = [n for n in names if only is None or only(n)]
    if backend == "stretto":
        importlib.import_module("stretto.torch.group")  # once, before ranks are forked
    outcomes: dict[str, tuple[str, str]] = {}
    ranks = None
    for name in names:
        if ranks is None:
            ranks = Ranks(suite, kind, backend, world)
        begin = time.monotonic()
        if why := _always_skipped(getattr(kind, name)):
            outcomes[name] = "skipped", why
        else:
            outcomes[name] = ranks.run(name)
        took_s = time.monotonic() - begin
        say(f"{backend:8} {outcomes[name][0]:8} {took_s:6.1f} s  {name}")
        if outcomes[name][0] not in ("passed", "skipped"):
            ranks.end()
            ranks = None
    if ranks is not None:
        ranks.end()
    return outcomes


def table(found: dict[str, dict[str, tuple[str, str]]]) -> str:
    """Return a table of counts, and every test that did not end alike."""
    lines = ["| backend | passed | failed | skipped |", "| --- | --- | --- | --- |"]
    for backend, outcomes in found.items():
        count = Counter(kind for kind, _ in outcomes.values())
        failed = count["failed"] + count["hung"] + count["died"]
        lines.append(
            f"| {backend} | {count['passed']} | {failed} | {count['skipped']} |"
        )
    if len(found) == 2:
        (a, first), (b, second) = found.items()
        lines += ["", f"| not alike | {a} | {b} |", "| --- | --- | --- |"]
        for name in first:
            one, two = first[name][0], second[name][0]
            if one != two:
                lines.append(f"| {name} | {one} | {two} |")
    return "\n".join(lines)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("--backend", action="append", choices=["gloo", "stretto"])
    parser.add_argument("-k", default="", help="only tests with this in their name")
    parser.add_argument("--names", help="a file with names, one on a line")
    parser.add_argument("--trace", action="store_true", help="print what was raised")
    parser.add_argument("--report", help="where to write what came of each, as JSON")
    args = parser.parse_args()
    names = set(Path(args.names).read_text().split()) if args.names else None

    def only(name: str) -> bool:
        return args.k in name and (names is None or name in names)

    found = {}
    for backend in args.backend or ["gloo", "stretto"]:
        found[backend] = run(backend, args.world, only)
        if args.trace:
            for name, (kind, text) in found[backend].items():
                if kind not in ("passed", "skipped"):
                    print(f"---- {backend} {name}: {kind}\n{text}")
    print(table(found))
    if args.report:
        Path(args.report).write_text(json.dumps(found, indent=1))
    bad = [n for n, (kind, _) in found[backend].items() if kind in ("hung", "died")]
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
