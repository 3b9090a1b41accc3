"""Make this process one without SciPy, as most users' are."""

import sys

sys.modules["scipy"] = None
