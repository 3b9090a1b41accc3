"""The name by which users import `stretto.program.ir`."""

from stretto.program.ir import *  # noqa: F403
from stretto.program.ir import __all__  # noqa: F401
