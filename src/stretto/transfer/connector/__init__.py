"""KV caches of serving engines, in the shape of vLLM's KVConnector interface (v1)."""

from stretto.transfer.connector.scheduler import Scheduler
from stretto.transfer.connector.steps import Load, Save, Step, Told
from stretto.transfer.connector.worker import Worker

__all__ = ["Load", "Save", "Scheduler", "Step", "Told", "Worker"]
