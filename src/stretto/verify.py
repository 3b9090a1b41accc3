"""The name by which users import `stretto.compiler.verify`."""

from stretto.compiler.verify import *  # noqa: F403
from stretto.compiler.verify import __all__  # noqa: F401
