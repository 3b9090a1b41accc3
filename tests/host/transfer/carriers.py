"""The carriers that tests of transfers go by: by day those that need no library.

UCX's tests have a process of their own (`test_ucx.py`): beside all that other tests
have loaded, a connection of it has been seen to hang.
"""

import os

from stretto.transfer.engine.paths import CARRIERS as ALL

__all__ = ["CARRIERS"]

CARRIERS = ALL if os.environ.get("STRETTO_TEST_BY_UCX") else ("tcp",)
