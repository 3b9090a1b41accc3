"""See what a run did: a local page, live or from files, and the same as one file."""

from stretto.studio.inputs.given import NamedInputs
from stretto.studio.serve.export import exported
from stretto.studio.serve.opening import opened
from stretto.studio.serve.server import StudioServer
from stretto.studio.serve.studio import Studio, follow

__all__ = ["NamedInputs", "Studio", "StudioServer", "exported", "follow", "opened"]
