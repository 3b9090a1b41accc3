"""Errors of both families, options, names of groups, and what an import costs."""

import subprocess
import sys
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")

import stretto  # noqa: E402
import stretto.torch  # noqa: E402
from stretto.torch import faults, options, registry  # noqa: E402
from stretto.torch.meeting import LONGEST_S, seconds  # noqa: E402


@pytest.mark.parametrize(
    "kind", [stretto.PeerLost, stretto.CallError, stretto.CommunicatorBroken]
)
def test_an_error_is_of_both_families(kind):
    """It can be caught as stretto's or as torch's, and keeps whom it blames."""
    error = kind("rank 1 died")
    error.blamed = (1,)
    made = faults.as_torch(error)
    assert isinstance(made, kind)
    assert isinstance(made, torch.distributed.DistBackendError)
    assert isinstance(made, RuntimeError)
    assert "rank 1 died" == str(made)
    assert (1,) == made.blamed
    assert faults.as_torch(made) is made
    assert type(made) is type(faults.as_torch(kind("again")))


def test_a_time_out_has_the_words_that_torchs_tests_look_for():
    """The text says `Timed out` beside what stretto says."""
    made = faults.as_torch(stretto.CollectiveTimeout("rank 1 did not come"))
    assert " Timed out " in str(made)
    assert "rank 1 did not come" in str(made)


def test_other_errors_stay_as_they_are():
    """Only errors of stretto become torch's."""
    error = ValueError("no")
    assert faults.as_torch(error) is error


def test_every_operator_has_its_name():
    """All of torch's operators but the factor have one; that is a number."""
    named = {
        "SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max",
        "BAND": "band", "BOR": "bor", "BXOR": "bxor",
    }  # fmt: skip
    for theirs, ours in named.items():
        op = getattr(torch.distributed.ReduceOp, theirs)
        assert ours == options.operator_of(op)
    assert 2.5 == options.operator_of(torch.distributed._make_nccl_premul_sum(2.5))


def test_options_refuse_what_they_do_not_know():
    """An unknown way or collective is an error that quotes it."""
    with pytest.raises(stretto.CallError, match="transfers='mpi'"):
        stretto.torch.Options(transfers="mpi")
    with pytest.raises(stretto.StrettoError, match="'all_sum'"):
        stretto.torch.Options(algorithms={"all_sum": "all_reduce/ring"})
    with pytest.raises(stretto.CallError, match="want algorithms by collective"):
        stretto.torch.Options(algorithms="ring")
    with pytest.raises(stretto.CallError, match="bits='exact'; want 'invariant',"):
        stretto.torch.Options(bits="exact")


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("ring", "all_reduce/ring"),
        (" ring push packets", "all_reduce/ring push packets"),
        ("all_reduce/ring", "all_reduce/ring"),
        (("two_shot", "pull"), ("all_reduce/two_shot", "pull")),
        (None, None),
    ],
)
def test_an_algorithm_is_named_without_its_collective(short, whole):
    """What is said already need not be said again."""
    made = stretto.torch.Options(algorithms={"all_reduce": short})

    assert {"all_reduce": whole} == made.algorithms


@pytest.mark.parametrize(
    ("pin", "text"),
    [
        ("rign", "did you mean all_reduce/ring"),
        ("all_reduce/rign", "did you mean all_reduce/ring"),
        ("all_gather/ring", "that is an all_gather; want an all_reduce"),
        ("ring quickly", "schedule word 'quickly'; known: push"),
        (("two_shot", "quickly"), "schedule word 'quickly'; known: push"),
        ("", "known: all_reduce"),
        ((), "want a name such as"),
        (3, "want a name such as"),
    ],
)
def test_an_algorithm_that_is_none_is_answered_at_once(pin, text):
    """When options are made, with the nearest name, and not in the first call."""
    with pytest.raises(stretto.StrettoError, match=text):
        stretto.torch.Options(algorithms={"all_reduce": pin})


def test_short_forms_of_options_have_c10ds_defaults():
    """A root, an operator or a timeout alone stands for all options."""
    found = options.given(None, reduceOp=torch.distributed.ReduceOp.MAX)
    assert (0, True) == (found.rootRank, found.asyncOp)
    assert torch.distributed.ReduceOp.MAX == found.reduceOp
    assert 3 == options.given(3).rootRank
    assert (
        torch.distributed.ReduceOp.MIN
        == options.given(torch.distributed.ReduceOp.MIN).reduceOp
    )
    assert timedelta(1) == options.given(timedelta(1)).timeout


def test_time_outs_in_seconds():
    """None and -1 ms mean that none is set, and zero means no limit."""
    assert None is seconds(None)
    assert None is seconds(timedelta(milliseconds=-1))  # c10d's "not set"
    assert LONGEST_S == seconds(timedelta(0))
    assert 1.5 == seconds(timedelta(seconds=1.5))


def test_a_name_stands_for_a_communicator_until_it_is_forgotten():
    """A name that is not bound is an error; forgetting twice is none."""
    with stretto.connect(0, 1, "tests-pure-torch-groups") as comm:
        registry.bind("some", comm)
        assert registry.communicator("some") is comm
        assert registry.communicator(comm) is comm
        registry.forget("some")
        registry.forget("some")
    for given, text in (
        ("some", "no group named 'some'"),
        (None, "no default group"),
        (7, "a int is no group"),
    ):
        with pytest.raises(stretto.CallError, match=text):
            registry.communicator(given)


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert 0 == done.returncode, done.stderr
    return done.stdout.strip()


def test_stretto_does_not_import_torch():
    """Whoever does without torch does not pay for it."""
    assert "False" == run("import stretto, sys; print('torch' in sys.modules)")


def test_the_import_brings_little_beside_torch():
    """Under 50 ms: nothing of the runtime, of which the first group has need."""
    code = (
        "import torch, sys; before = set(sys.modules); import stretto.torch; "
        "print(sorted(m for m in set(sys.modules) - before if 'runtime' in m "
        "or 'numba' in m or 'group' in m))"
    )
    assert "[]" == run(code)


@pytest.mark.slow
def test_an_environment_that_hides_the_backend_is_told():
    """Where torchcomms takes the place of c10d, the import fails."""
    code = (
        "import os; os.environ['TORCH_DISTRIBUTED_USE_TORCHCOMMS'] = '1'\n"
        "import logging, sys; logging.basicConfig(stream=sys.stdout)\n"
        "try:\n import stretto.torch\n"
        "except ImportError:\n print('unset it')"  # torch itself may want torchcomms
    )
    assert "unset it" in run(code)


def test_without_torch_the_import_says_what_to_install():
    """The error has the command."""
    code = (
        "import importlib.util; importlib.util.find_spec = lambda name: None\n"
        "try:\n import stretto.torch\n"
        "except Exception as e:\n print(type(e).__name__, e)"
    )
    said = run(code)
    assert said.startswith("MissingExtraError")
    assert "pip install 'stretto[torch]'" in said


def test_nccl_is_made_when_only_it_can_answer():
    """Torch's questions about splitting do not connect it."""
    from stretto.torch.fallback import OnDemand

    made = []

    class Nccl:
        options = "its options"

    def make():
        made.append(True)
        return Nccl()

    backend = OnDemand(make, None)
    assert not backend.supports_splitting
    assert not backend.supports_tensor_alloc("cuda")
    backend.eager_connect_single_device("cuda:0")
    assert [] == made
    assert "its options" == backend.options
    assert [True] == made
