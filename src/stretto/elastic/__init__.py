"""A job that does not stop: who starts its ranks and standbys, and who orders it about.

In: a command, how many ranks, and who stands by. Out: the job's status, which is good
though processes were lost. Never: a membership of its own; that is the fabric's World.
"""

from __future__ import annotations

from stretto.elastic.batch import Shares, elastic_batch
from stretto.elastic.flapping import Flapping
from stretto.elastic.job import JobOptions, LaunchedJob, run_job
from stretto.elastic.looking import JobMember, JobView, look
from stretto.elastic.ordering import drain, grow, replace
from stretto.elastic.rehearsal import Downtime, rehearse
from stretto.elastic.starting import Starter

__all__ = [
    "Downtime",
    "Flapping",
    "JobMember",
    "JobOptions",
    "JobView",
    "LaunchedJob",
    "Shares",
    "Starter",
    "drain",
    "elastic_batch",
    "grow",
    "look",
    "rehearse",
    "replace",
    "run_job",
]
