"""Jobs on a cluster in virtual time."""

from stretto.network.cluster.cluster import Cluster
from stretto.network.cluster.ideal import ideal
from stretto.network.cluster.result import ClusterRun, JobRun, mean_row

__all__ = ["Cluster", "ClusterRun", "JobRun", "ideal", "mean_row"]
