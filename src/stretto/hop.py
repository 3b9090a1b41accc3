"""The name by which users import `stretto.fabric.hop`."""

from stretto.fabric.hop import *  # noqa: F403
from stretto.fabric.hop import __all__  # noqa: F401
