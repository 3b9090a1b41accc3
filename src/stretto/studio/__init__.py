"""See what a run did: a local page, live or from files, and the same as one file."""

from stretto.studio.export import exported
from stretto.studio.given import Given
from stretto.studio.server import StudioServer
from stretto.studio.studio import Studio, follow

__all__ = ["Given", "Studio", "StudioServer", "exported", "follow"]
