"""Jobs of a cluster: what they compute and send, from profiles, files and traces."""

from stretto.network.jobs.generator import generate
from stretto.network.jobs.job import Job, JobStep, Phase, WorkerSend
from stretto.network.jobs.profiles import JobProfile, names, profile
from stretto.network.jobs.reader import read, write

__all__ = [
    "Job",
    "JobProfile",
    "JobStep",
    "Phase",
    "WorkerSend",
    "generate",
    "names",
    "profile",
    "read",
    "write",
]
