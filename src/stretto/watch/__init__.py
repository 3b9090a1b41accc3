"""See what ranks did: summaries, diagnoses, and what other tools read."""

from stretto.watch.attach import attached, tell_why
from stretto.watch.columns import dense_ids, nearest_rank, ordered, places_by
from stretto.watch.diagnose import Chain, Diagnosis, Finding, Involved, diagnose
from stretto.watch.holdup import HoldUp, holdup, slow_first
from stretto.watch.inspector import inspector_lines, read_inspector
from stretto.watch.lateness import Late, arrivals, lateness
from stretto.watch.links import LinkTraffic, links
from stretto.watch.outside import Outside, outside
from stretto.watch.page import page, spell_ranks
from stretto.watch.perfetto import flows, write_perfetto
from stretto.watch.prometheus import prometheus_lines
from stretto.watch.report import head, rows_of, said
from stretto.watch.simulated import simulated
from stretto.watch.standing import Stand, stands
from stretto.watch.summary import (
    Model,
    RankShare,
    Summary,
    SummaryRow,
    summarise,
)
from stretto.watch.verdict import Sentence, time_text, verdict

__all__ = [
    "Chain",
    "Diagnosis",
    "Finding",
    "HoldUp",
    "Involved",
    "Late",
    "LinkTraffic",
    "Model",
    "Outside",
    "RankShare",
    "Sentence",
    "Stand",
    "Summary",
    "SummaryRow",
    "arrivals",
    "attached",
    "dense_ids",
    "diagnose",
    "flows",
    "head",
    "holdup",
    "inspector_lines",
    "lateness",
    "links",
    "nearest_rank",
    "ordered",
    "outside",
    "page",
    "places_by",
    "prometheus_lines",
    "read_inspector",
    "rows_of",
    "said",
    "simulated",
    "slow_first",
    "spell_ranks",
    "stands",
    "summarise",
    "tell_why",
    "time_text",
    "verdict",
    "write_perfetto",
]
