"""The name by which users import `stretto.compiler.lower`."""

from stretto.compiler.lower import *  # noqa: F403
from stretto.compiler.lower import __all__  # noqa: F401
