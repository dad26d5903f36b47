"""The laws: rules of the contract that are checked on the results of a storage alone, without the oracle.

The `sentence` of each law states it. `section` is the section of the contract.
"""

from dibs_conformance.laws.accepted import (
    AcceptedIsKept,
    BlockedIsKept,
    FailJobs,
    LastUpdateWins,
    OwnOutcome,
    RequestKeys,
    ResultsKept,
    RevisionsGrow,
)
from dibs_conformance.laws.law import Law as Law
from dibs_conformance.laws.law import LawBroken as LawBroken
from dibs_conformance.laws.observed import ObservedCall as ObservedCall
from dibs_conformance.laws.observed import ObservedHistory as ObservedHistory
from dibs_conformance.laws.reporting import CountsAgree, LeaseLifetimes, OffsetsGrow, OneEventEach
from dibs_conformance.laws.running import (
    CancelRequestedEnds,
    ClaimOrder,
    FencesGrow,
    LateHolderRefused,
    MaxActiveLimit,
    NotEarly,
    OneActiveRun,
    OneEnd,
    PausedQueue,
)

#: All laws, in the order of the report.
LAWS: tuple[type[Law], ...] = (
    AcceptedIsKept,
    OneActiveRun,
    LateHolderRefused,
    FencesGrow,
    OneEnd,
    BlockedIsKept,
    LastUpdateWins,
    OwnOutcome,
    RevisionsGrow,
    ClaimOrder,
    NotEarly,
    PausedQueue,
    MaxActiveLimit,
    CancelRequestedEnds,
    LeaseLifetimes,
    RequestKeys,
    FailJobs,
    ResultsKept,
    OffsetsGrow,
    OneEventEach,
    CountsAgree,
)
