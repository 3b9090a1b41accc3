"""The name by which users import `stretto.program.algorithms`."""

from stretto.program.algorithms import *  # noqa: F403
from stretto.program.algorithms import __all__  # noqa: F401
