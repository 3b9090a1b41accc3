"""How rows of an epilogue are divided among blocks and threads: what is shipped."""

import pytest

from stretto.bench import tune
from stretto.compiler.plan import Schedule
from stretto.errors import TopologyError
from stretto.executors.cuda.codegen.rowwise import shared_by
from stretto.program import algorithms, epilogues
from stretto.program.epilogues import Named, ValueForm, resolve
from stretto.runtime.choice import Choice, Profile, Question, Selector
from stretto.runtime.choice.fused import fused_choice

ROWS = """
executor = "cuda"
[[rows]]
ranks = [2, 4]
one_shot_up_to = "1M"
most_share = 4
share_of_many = 2
many = 64
least_cells = 64
most_threads = 256
most_blocks = 64
most_in_pairs = 64
"""


@epilogues.epilogue
def rms_norm(y, weight, eps):
    scale = epilogues.rsqrt(epilogues.row_mean(y * y) + eps)
    return y * scale * weight


def spec_of(row):
    named = {"weight": Named("weight", "bfloat16", ValueForm.ROW)}
    named["eps"] = Named("eps", "", ValueForm.SCALAR)
    return resolve(rms_norm.graph, named, dtype="bfloat16", row=row)


def choice_of(row, rows, num_ranks, rule=None):
    plain = Choice(algorithms.get("all_reduce/ring"), Schedule())
    rule = rule or Profile.shipped("cuda").rows_of(num_ranks)
    return fused_choice(
        plain,
        rule,
        Question(
            executor="cuda",
            collective="all_reduce",
            num_ranks=num_ranks,
            nbytes=rows * row * 2,
        ),
        spec_of(row),
        pitched=False,
    )


@pytest.mark.parametrize("num_ranks", range(1, 9))
def test_what_is_shipped_is_for_every_number_of_ranks(num_ranks):
    """A communicator with an epilogue always finds how to divide its rows."""
    assert Selector("cuda").rows(num_ranks).answers(num_ranks)


@pytest.mark.parametrize("row", [2048, 2880, 4096, 5120, 7168, 8192])
def test_of_two_gpus_every_thread_has_one_cell_up_to_128_rows(row):
    """Two shots move as many bytes as one; two cells of a thread are slower."""
    spec = spec_of(row)
    for rows in range(1, 129):
        algorithm, schedule = choice_of(row, rows, 2)

        assert "all_reduce/one_shot" == algorithm.name
        share = shared_by(spec, schedule.blocks, rows)
        assert share * schedule.threads * 8 >= row, (rows, schedule)
        assert share >= 1
        assert schedule.blocks == rows * share <= 256
        assert schedule.threads <= 512


@pytest.mark.parametrize(
    ("row", "rows", "num_ranks", "name", "blocks", "threads"),
    [
        (8192, 1, 4, "one_shot", 8, 128),
        (8192, 16, 4, "one_shot", 64, 256),
        (8192, 64, 4, "two_shot", 64, 512),
        (4096, 8, 8, "one_shot", 32, 128),
        (8192, 256, 2, "two_shot", 128, 512),
    ],
)
def test_more_gpus_send_parts_sooner(row, rows, num_ranks, name, blocks, threads):
    """One shot sends everything to everybody: what it costs grows with them."""
    algorithm, schedule = choice_of(row, rows, num_ranks)

    assert f"all_reduce/{name}" == algorithm.name
    assert (blocks, threads) == (schedule.blocks, schedule.threads)


def test_a_profile_of_ones_own_says_it_first():
    """For its numbers of ranks; what is shipped, for the others."""
    own = Profile.parse(ROWS, "here")
    selector = Selector("cuda", own)

    assert 4 == selector.rows(2).most_share
    assert own.rows[0] != selector.rows(8)
    _, schedule = choice_of(4096, 4, 2, selector.rows(2))
    assert (16, 128) == (schedule.blocks, schedule.threads)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (ROWS.replace("many = 64\n", "", 1), "KeyError: 'many'"),
        (ROWS + "more = 1\n", "rows: more; want one_shot_up_to"),
        (ROWS.replace('"1M"', '"lots"'), "size 'lots'"),
    ],
)
def test_a_table_that_cannot_be_read_is_one_clear_line(wrong, said):
    """It names the file, and what it wants."""
    with pytest.raises(TopologyError, match=rf"profile here: .*{said}.*rows"):
        Profile.parse(wrong, "here")


def test_what_a_profile_says_of_rows_stays(tmp_path):
    """It is written by hand: tuning finds rules by size."""
    path = tmp_path / "cuda.toml"
    rows = Profile.shipped("cuda").rows[0]
    said = [f"{name} = {getattr(rows, name)}" for name in rows.__slots__[2:]]
    path.write_text(
        "\n".join(['executor = "cuda"', "[[rows]]", "ranks = [1, 2]", *said])
    )

    for _ in range(2):
        path.write_text(tune.merged(path, "cuda", [], "tuned"))

    assert (rows,) == Profile.parse(path.read_text(), "test").rows


@pytest.mark.parametrize(("num_ranks", "up_to"), [(2, 512 << 10), (4, 256 << 10)])
def test_a_norm_is_in_the_kernel_up_to_what_was_measured(num_ranks, up_to):
    """Several kernels that would follow are worth more; who says nothing says 8 MB."""
    shipped = Profile.shipped("cuda").rows_of(num_ranks)
    assert up_to == shipped.fused_up_to
    assert 8 << 20 == shipped.fused_of_many_up_to
    assert {2: 16 << 20, 4: 8 << 20}[num_ranks] == shipped.beside_from
    assert {2: 32 << 20, 4: 16 << 20}[num_ranks] == shipped.scattered_beside_from
    assert 8 << 20 == Profile.parse(ROWS, "a test").rows[0].fused_up_to
    said = Profile.parse(ROWS + 'fused_up_to = "3K"', "a test").rows[0]
    assert 3 << 10 == said.fused_up_to


@pytest.mark.parametrize(("num_ranks", "up_to"), [(2, 256 << 20), (4, 64 << 20)])
def test_engines_give_what_was_measured_ahead_of_nccl_and_only_there(num_ranks, up_to):
    """On a machine that nobody has looked at 8 MB; a profile of one's own may say."""
    here = Profile.shipped("cuda", "NVIDIA H200").rows_of(num_ranks)
    assert up_to == here.engines_up_to
    other = Profile.shipped("cuda", "NVIDIA B300").rows_of(num_ranks)
    assert 8 << 20 == other.engines_up_to
    assert here.fused_up_to == other.fused_up_to
    said = Profile.parse(ROWS + 'engines_up_to = "2M"', "a test").rows[0]
    assert 2 << 20 == said.engines_up_to
