"""Which blocks have which rows of an epilogue."""

import pytest

from stretto.executors.cuda.codegen.rowwise import shared_by
from stretto.program import epilogues
from stretto.program.epilogues import resolve


def spec_of(row):
    @epilogues.epilogue
    def centred(y):
        return y - epilogues.row_mean(y)

    return resolve(centred.graph, {}, dtype="bfloat16", row=row)


@pytest.mark.parametrize(
    ("row", "blocks", "rows", "share"),
    [
        (8192, 8, 1, 8),
        (8192, 128, 1, 32),
        (8192, 64, 16, 4),
        (8192, 64, 64, 1),
        (8192, 64, 65, 0),
        (8192, 96, 2, 32),
        (5120, 80, 4, 20),
        (7168, 112, 16, 7),
        (7168, 128, 16, 4),
        (2880, 8, 1, 1),
        (1 << 17, 4, 1, 1),
        (1 << 17, 8, 1, 8),
    ],
)
def test_blocks_that_would_be_idle_share_rows(row, blocks, rows, share):
    """As long as each has whole groups of cells."""
    spec = spec_of(row)

    assert share == shared_by(spec, blocks, rows)


def test_what_knows_no_rows_has_none_that_are_shared():
    """Cells then go wherever there are threads."""

    @epilogues.epilogue
    def doubled(y):
        return y + y

    spec = resolve(doubled.graph, {}, dtype="bfloat16", row=0)

    assert 0 == shared_by(spec, 64, 1)
