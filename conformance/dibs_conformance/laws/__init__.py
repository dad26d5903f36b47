"""The laws: rules of the contract that are checked on the results of a storage alone, without the oracle.

The `sentence` of each law states it. `section` is the section of the contract.
"""

from dibs.storage.capabilities import Capabilities
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
from dibs_conformance.laws.kept_outcomes import AttributesKept, LastProgressKept
from dibs_conformance.laws.law import Law as Law
from dibs_conformance.laws.law import LawBroken as LawBroken
from dibs_conformance.laws.limits import LIMIT_LAWS as LIMIT_LAWS
from dibs_conformance.laws.limits import RoomWakes
from dibs_conformance.laws.memos import MemoFenced, MemoKept, MemoOfItsData
from dibs_conformance.laws.observed import ObservedCall as ObservedCall
from dibs_conformance.laws.observed import ObservedHistory as ObservedHistory
from dibs_conformance.laws.releasing import ReleaseLeavesNoCount, TimedReleaseWaits
from dibs_conformance.laws.reporting import (
    CountsAgree,
    LeaseLifetimes,
    OffsetsGrow,
    OneEventEach,
    ResultsLogged,
)
from dibs_conformance.laws.running import (
    CancelRequestedEnds,
    ClaimsInOrder,
    FencesGrow,
    LateHolderRefused,
    MaxActiveLimit,
    NotEarly,
    OneActiveRun,
    OneEnd,
    PausedQueue,
)
from dibs_conformance.laws.update_only import UpdateOnlyCreatesNothing, UpdateOnlyEnds

#: All laws, in the order of the report.
LAWS: tuple[type[Law], ...] = (
    AcceptedIsKept,
    OneActiveRun,
    LateHolderRefused,
    FencesGrow,
    OneEnd,
    BlockedIsKept,
    LastUpdateWins,
    UpdateOnlyCreatesNothing,
    UpdateOnlyEnds,
    OwnOutcome,
    RevisionsGrow,
    ClaimsInOrder,
    NotEarly,
    PausedQueue,
    MaxActiveLimit,
    CancelRequestedEnds,
    ReleaseLeavesNoCount,
    TimedReleaseWaits,
    LeaseLifetimes,
    RequestKeys,
    FailJobs,
    ResultsKept,
    MemoFenced,
    MemoKept,
    MemoOfItsData,
    AttributesKept,
    LastProgressKept,
    OffsetsGrow,
    OneEventEach,
    ResultsLogged,
    CountsAgree,
    *LIMIT_LAWS,
)


def laws_for(claims: Capabilities) -> tuple[type[Law], ...]:
    """Return the laws that a storage with these capabilities must keep."""
    left_out = () if claims.limits else LIMIT_LAWS
    unwoken = () if claims.push_wakeups else (RoomWakes,)
    return tuple(law for law in LAWS if law not in (*left_out, *unwoken))
