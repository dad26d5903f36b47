"""Wake-ups: the end of a node makes the evaluation of its flow due at once.

A wake-up is a hint. An evaluation also runs by its own timer, so a lost wake-up costs time and no result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar, cast

import msgspec

from dibs.model.check_values import check_text
from dibs.model.job import JobData, NewJob, OutcomeRetention
from dibs.model.limits import LIMITS
from dibs.model.requests import Complete, EnqueueRequest, Fail, FollowUp, SettleAction, Update

A = TypeVar("A", bound=SettleAction)

#: The queue of flows. The payload of its jobs is a plan.
FLOWS: Final = "dibs.flows"
#: The queue of evaluations. Their ids are those of their flows.
EVALUATIONS: Final = "dibs.flows.evaluate"
#: The attribute of a node: the id of its flow, as JSON text.
FLOW_ATTRIBUTE: Final = "dibs.flow"

#: An evaluation leaves no outcome, because its flow shows everything that it did.
NO_OUTCOME: Final = OutcomeRetention(completed=0, failed=0, cancelled=0)
#: The payload of an evaluation without a hint.
NO_HINT: Final = b"null"
#: A plain wake-up keeps the hint that a waiting evaluation has.
WAKE: Final = Update(data=False, run_at="earlier")
#: A wake-up with a hint replaces the hint of a waiting evaluation.
WAKE_WITH_HINT: Final = Update(data=True, run_at="earlier")


class Hint(msgspec.Struct, omit_defaults=True):
    """The payload of a wake-up: it asks for a full evaluation, which reads the flow itself."""

    #: The number of a node to read, or None.
    node: int | None = None
    #: Text that differs between two hints, so that an evaluation recognizes a hint that it has seen.
    token: str = ""


#: The hint after the cancellation of a flow job: its evaluation must read the job itself.
CANCELLED_HINT: Final = Hint(token="cancelled")  # noqa: S106 - no password


def flow_of(attributes: Mapping[str, bytes]) -> str | None:
    """Return the id of the flow of a job with these attributes; None for a job without a flow."""
    raw = attributes.get(FLOW_ATTRIBUTE)
    if raw is None:
        return None
    try:
        id = msgspec.json.decode(raw, type=str)
        check_text("id", id, LIMITS.id)
    except ValueError:  # a program has set the attribute itself, and dibs cannot use the value
        return None
    return id


def wake_up_job(flow_id: str, hint: bytes = NO_HINT, delay: int | None = None) -> NewJob:
    """Return the evaluation of a flow as a new job, due at once, or after a delay in ms."""
    return NewJob(id=flow_id, data=JobData(payload=hint, retention=NO_OUTCOME), delay=delay)


def wake_up_request(flow_id: str, hint: Hint | None = None, delay: int | None = None) -> EnqueueRequest:
    """Return the request that makes the evaluation of a flow due, and creates it if it is missing.

    It is due at once, or after a delay in ms.
    """
    if hint is None:
        return EnqueueRequest(job=wake_up_job(flow_id, delay=delay), on_conflict=WAKE)
    job = wake_up_job(flow_id, msgspec.json.encode(hint), delay)
    return EnqueueRequest(job=job, on_conflict=WAKE_WITH_HINT)


def wake_up_follow_up(flow_id: str) -> FollowUp:
    """Return the wake-up as a follow-up of the end of a node."""
    return FollowUp(queue=EVALUATIONS, job=wake_up_job(flow_id), on_conflict=WAKE)


def with_wake_up(action: A, id: str, attributes: Mapping[str, bytes]) -> A:
    """Return the end of a node with the wake-up of its flow added; another action is returned unchanged.

    The wake-up after a failure has the number of the node as a hint, because the evaluation might read this
    node late otherwise.
    """
    if not isinstance(action, Complete | Fail) or (flow_id := flow_of(attributes)) is None:
        return action
    follow_up = wake_up_follow_up(flow_id)
    if isinstance(action, Fail) and (number := node_number(flow_id, id)) is not None:
        job = wake_up_job(flow_id, msgspec.json.encode(Hint(node=number)))
        follow_up = FollowUp(queue=EVALUATIONS, job=job, on_conflict=WAKE_WITH_HINT)
    end = cast("Complete | Fail", action)
    return cast("A", msgspec.structs.replace(end, then=(*end.then, follow_up)))


def node_number(flow_id: str, id: str) -> int | None:
    """Return the number of a node by its job id; None for an id that the flow has not made itself."""
    last = id.rpartition("/")[2]
    return int(last) if id.startswith(f"{flow_id}/") and last.isdecimal() and last.isascii() else None
