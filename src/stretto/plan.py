"""The name by which users import `stretto.compiler.plan`."""

from stretto.compiler.plan import *  # noqa: F403
from stretto.compiler.plan import __all__  # noqa: F401
