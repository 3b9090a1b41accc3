"""The name by which users import `stretto.program.epilogues`."""

from stretto.program.epilogues import *  # noqa: F403
from stretto.program.epilogues import __all__  # noqa: F401
