"""stretto.jax on two processes, which try everything in one sitting."""

import importlib.util
import subprocess
import sys

import pytest

if importlib.util.find_spec("jax") is None:
    pytest.skip("JAX is not installed here", allow_module_level=True)
from tests.host.jax import checks

import stretto

pytestmark = [pytest.mark.host, pytest.mark.timeout(240)]


def run(comm):
    """Be a rank: return what went wrong, by check."""
    bench, found = checks.Bench(comm), {}
    for name, function in checks.CHECKS.items():
        try:
            function(bench)
        except Exception as e:  # the others go on, on all ranks
            found[name] = f"{type(e).__name__}: {e}"
    return found


@pytest.fixture(scope="module")
def said():
    """What went wrong on each rank."""
    return stretto.spawn(run, num_ranks=2, deadline_s=60)


@pytest.mark.parametrize("name", list(checks.CHECKS))
def test_a_check_finds_nothing_wrong(said, name):
    """Its docstring says what."""
    assert [None, None] == [found.get(name) for found in said]


def lost(comm):
    """Call in a compiled program what the other never comes to."""
    import jax

    import stretto.jax

    if comm.rank:
        return ""
    call = jax.jit(lambda x: stretto.jax.all_reduce(x, comm))
    with pytest.raises(Exception, match="PeerLost") as raised:
        call(jax.numpy.ones(3)).block_until_ready()
    return str(raised.value)


def test_a_fault_in_a_compiled_program_says_who():
    """JAX raises an error of its own, with ours in it; nobody hangs."""
    said, _ = stretto.spawn(lost, num_ranks=2, deadline_s=60)

    assert "rank 1" in said


def test_who_has_no_jax_is_told_what_to_install():
    """Not by a traceback of an import."""
    program = (
        "import sys; sys.modules['jax'] = None\n"
        "import stretto\n"
        "try:\n    import stretto.jax\n"
        "except stretto.MissingExtraError as e:\n    print(e)\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert "stretto.jax needs JAX: pip install jax\n" == made.stdout
