"""The name by which users import `stretto.program.foreign`."""

from stretto.program.foreign import *  # noqa: F403
from stretto.program.foreign import __all__  # noqa: F401
