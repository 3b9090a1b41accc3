"""Many jobs on one network: who goes where, when each sends, and what holds it up."""

from stretto.network import cassini, cluster, dags, jigsaw, jobs, schedulers
from stretto.network.cluster import Cluster, ClusterRun
from stretto.network.congestion import find, names
from stretto.network.jobs import Job, JobStep

__all__ = [
    "Cluster",
    "ClusterRun",
    "Job",
    "JobStep",
    "cassini",
    "cluster",
    "dags",
    "find",
    "jigsaw",
    "jobs",
    "names",
    "schedulers",
]
