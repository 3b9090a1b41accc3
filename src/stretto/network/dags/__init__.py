"""Jobs that are graphs of tasks: the order of one alone, and many on servers."""

from stretto.network.dags.dag import Dag, DagTask, generate_dags, loaded, read_dags
from stretto.network.dags.graphene import critical_first, offline
from stretto.network.dags.online import KEYS, online
from stretto.network.dags.servers import Servers, listed

__all__ = [
    "KEYS",
    "Dag",
    "DagTask",
    "Servers",
    "critical_first",
    "generate_dags",
    "listed",
    "loaded",
    "offline",
    "online",
    "read_dags",
]
