"""Laws of the contract that need no oracle: they are held against what was seen, after every call."""

from dibs_conformance.laws.accepted import (
    BlockedRuns,
    FailJobs,
    Kept,
    LastUpdateWins,
    RequestKeys,
    Results,
    RevisionsGrow,
    Told,
)
from dibs_conformance.laws.law import Broken as Broken
from dibs_conformance.laws.law import Law as Law
from dibs_conformance.laws.observed import History as History
from dibs_conformance.laws.observed import Seen as Seen
from dibs_conformance.laws.reporting import CountsAgree, LeasesHold, OffsetsGrow, OneEventEach
from dibs_conformance.laws.running import (
    EndsOnce,
    FencesGrow,
    InOrder,
    MaxActive,
    NeverComesBack,
    NotEarly,
    OneActive,
    Paused,
    StaleIsLost,
)

#: All of them, in the order of the report.
LAWS: tuple[type[Law], ...] = (
    Kept,
    OneActive,
    StaleIsLost,
    FencesGrow,
    EndsOnce,
    BlockedRuns,
    LastUpdateWins,
    Told,
    RevisionsGrow,
    InOrder,
    NotEarly,
    Paused,
    MaxActive,
    NeverComesBack,
    LeasesHold,
    RequestKeys,
    FailJobs,
    Results,
    OffsetsGrow,
    OneEventEach,
    CountsAgree,
)
