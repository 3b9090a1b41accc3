"""KV caches of serving engines, in the shape of vLLM's KVConnector interface (v1)."""

from stretto.transfer.connector.groups import CacheGroup
from stretto.transfer.connector.scheduler import Scheduler
from stretto.transfer.connector.stats import Stats
from stretto.transfer.connector.steps import EnginePlace, Load, Save, Step
from stretto.transfer.connector.worker import Worker

__all__ = [
    "CacheGroup",
    "EnginePlace",
    "Load",
    "Save",
    "Scheduler",
    "Stats",
    "Step",
    "Worker",
]
