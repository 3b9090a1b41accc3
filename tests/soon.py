"""How long something may take here: cores may be busy with other things."""

import os


def soon(seconds):
    """Return how long may take what takes so many seconds where cores are free."""
    return seconds * max(1.0, os.getloadavg()[0] / os.cpu_count())
