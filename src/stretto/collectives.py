"""The name by which users import `stretto.program.collectives`."""

from stretto.program.collectives import *  # noqa: F403
from stretto.program.collectives import __all__  # noqa: F401
