"""The name by which users import `stretto.program.lang`."""

from stretto.program.lang import *  # noqa: F403
from stretto.program.lang import __all__  # noqa: F401
