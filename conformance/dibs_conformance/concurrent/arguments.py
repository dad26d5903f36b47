"""The arguments of the calls that actions describe."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

from dibs.model.job import Job, JobData, NewJob, Outcome, Slot
from dibs.model.requests import Cancelled, Complete, EnqueueRequest, Fail, FollowUp, Settlement
from dibs.model.results import ExportRecord
from dibs_conformance.concurrent.actions import (
    CONFLICT_OPTIONS,
    JOB_DATA,
    LARGE_BYTES,
    LARGE_DATA,
    LONG_TTL,
    PATCHES,
    REPORTS,
    SETTINGS_PATCHES,
    SETTLE_ACTIONS,
    SHORT_TTL,
    START,
    UNUSED_LEASE,
    UPDATE_ONLY,
    Action,
    ClientState,
)

#: The seq and the revision of an imported job. A storage draws larger ones.
IMPORTED_NUMBER = 7


def build_arguments(action: Action, queue: str, state: ClientState, now: int) -> dict[str, Any]:
    """Return the arguments of the call that an action describes."""
    return ARGUMENTS.get(action.operation, _by_ids)(action, queue, state, now)


@cache
def large_data() -> JobData:
    """Return a payload of random bytes, which a storage cannot compress."""
    return JobData(payload=Random(0).randbytes(LARGE_BYTES))


def build_requests(action: Action) -> list[EnqueueRequest]:
    data = large_data() if action.data == LARGE_DATA else JOB_DATA[action.data]
    if action.conflict == UPDATE_ONLY:
        data = JobData()
    return [
        EnqueueRequest(
            job=NewJob(id=id, data=data, delay=action.delay or None),
            on_conflict=CONFLICT_OPTIONS[action.conflict],
            request_key="k" if action.flag and action.nth_newest else None,
        )
        for id in action.ids
    ]


def _settlements(action: Action, queue: str, state: ClientState) -> list[Settlement]:
    id, fence = _nth_newest(state.runs, action.nth_newest) or (action.ids[0], 1)
    settle_as = SETTLE_ACTIONS[action.settle_as]
    if isinstance(settle_as, Complete) and action.flag:
        settle_as = Complete(result=b"1", then=(FollowUp(queue=queue, job=NewJob(id=action.ids[-1])),))
    return [Settlement(id=id, fence=fence, action=settle_as)]


def _finish(action: Action, queue: str, state: ClientState, _: int) -> dict[str, Any]:
    id, revision = _nth_newest(state.revisions, action.nth_newest) or (action.ids[0], 1)
    [settlement] = _settlements(action, queue, state)
    settle_as = settlement.action
    end = settle_as if isinstance(settle_as, Complete | Fail | Cancelled) else Cancelled()
    return {"id": id, "end": end, "revision": revision}


def _report(action: Action, _: str, state: ClientState, __: int) -> dict[str, Any]:
    id, fence = _nth_newest(state.runs, action.nth_newest) or (action.ids[0], 1)
    progress, memo = REPORTS[(action.limit + action.flag + action.nth_newest) % len(REPORTS)]
    return {"id": id, "fence": fence, "progress": progress, "memo": memo}


def _by_ids(action: Action, _: str, __: ClientState, ___: int) -> dict[str, Any]:
    ids = list(dict.fromkeys(action.ids))
    if action.operation == "cancel":
        return {"ids": ids, "running": action.flag}
    return {"ids": ids}


def _lease(action: Action, state: ClientState) -> str:
    return state.leases[action.lease] if action.lease < min(2, len(state.leases)) else UNUSED_LEASE


def _nth_newest(received: list[tuple[str, int]], nth_newest: int) -> tuple[str, int] | None:
    return received[-1 - nth_newest % len(received)] if received else None


def _import(action: Action, _: str, __: ClientState, ___: int) -> dict[str, Any]:
    return {
        "records": [ExportRecord(id=id, slot=_imported_slot(id, action)) for id in dict.fromkeys(action.ids)]
    }


def _imported_slot(id: str, action: Action) -> Slot:
    """Return a waiting job, or with `flag` an outcome that is kept for ever."""
    number = IMPORTED_NUMBER
    if action.flag:
        outcome = Outcome(
            kind="completed", fence=0, first=number, revision=number, ended_at=START, expires_at=None
        )
        return Slot(outcome=outcome)
    job = Job(
        id=id,
        data=JobData(payload=b"imported"),
        run_at=START,
        enqueued_at=START,
        seq=number,
        first=number,
        revision=number,
    )
    return Slot(current=job)


def _settle_and_claim(action: Action, queue: str, state: ClientState, _: int) -> dict[str, Any]:
    return {
        "settlements": _settlements(action, queue, state),
        "lease": _lease(action, state),
        "limit": action.limit,
    }


def _events(action: Action, _: str, state: ClientState, __: int) -> dict[str, Any]:
    """Read from the start of the log, or from an offset that a client received."""
    offsets = [None, *state.offsets]
    return {"after": offsets[-1 - action.nth_newest % len(offsets)], "limit": action.limit}


#: Builds the arguments of a call from an action, the queue, the client state and the time in ms.
ArgumentBuilder = Callable[[Action, str, ClientState, int], dict[str, Any]]
ARGUMENTS: dict[str, ArgumentBuilder] = {
    "enqueue": lambda action, _, __, ___: {"requests": build_requests(action)},
    "claim": lambda action, _, state, __: {"lease": _lease(action, state), "limit": action.limit},
    "settle": lambda action, queue, state, _: {"settlements": _settlements(action, queue, state)},
    "settle_and_claim": _settle_and_claim,
    "serve": _settle_and_claim,
    "finish": _finish,
    "report": _report,
    "grant": lambda action, _, __, ___: {"ttl": SHORT_TTL if action.lease else LONG_TTL, "holder": "ann"},
    "renew": lambda action, _, state, __: {"lease": _lease(action, state), "ttl": SHORT_TTL},
    "drop": lambda action, _, state, __: {"lease": _lease(action, state), "limit": 100},
    "reap": lambda _, __, ___, ____: {"limit": 100},
    "configure": lambda action, _, __, ___: {"patch": SETTINGS_PATCHES[action.configure_to]},
    "prune": lambda action, _, __, ___: {"limit": action.limit},
    "import_": _import,
    "export": lambda action, _, __, ___: {"limit": action.limit},
    "split": lambda action, _, __, ___: {"limit": action.limit},
    "list": lambda action, _, __, ___: {"state": action.state, "limit": action.limit},
    "counts": lambda _, __, ___, ____: {},
    "compact": lambda _, __, ___, ____: {},
    "events": _events,
    "amend": lambda action, _, __, ___: {"id": action.ids[0], "patch": PATCHES[action.flag]},
}
