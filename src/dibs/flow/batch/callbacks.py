"""Callbacks: from the bound jobs of `app.batch` to the plan, and from the plan to enqueued jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from dibs.client.calls.bound_job import Bound
from dibs.errors import Refused
from dibs.flow.batch.plan import (
    BATCH_ATTRIBUTE,
    ON_FINISH,
    ON_FIRST_FAILURE,
    ON_SUCCESS,
    SUMMARY_ATTRIBUTE,
    callback_id,
)
from dibs.flow.batch.summary import BatchSummary
from dibs.flow.builder import Flow
from dibs.flow.context import FlowContext
from dibs.flow.plan import Plan, PlannedNode
from dibs.flow.running.node_enqueues import keep_at_least
from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, Reject

CALLBACKS: Final = (ON_SUCCESS, ON_FINISH, ON_FIRST_FAILURE)


def plan_callbacks(context: FlowContext, callbacks: Mapping[str, Bound[Any] | None]) -> dict[str, Plan]:
    """Return each callback that is given as a plan with one node. Raises Refused naming the callback."""
    planned: dict[str, Plan] = {}
    for name, job in callbacks.items():
        if job is None:
            continue
        _check_callback(name, job)
        flow = Flow(context, None, None, {})
        try:
            flow.add(job)
        except Refused as error:
            raise Refused(f"{name}: {error}", field=name) from error
        planned[name] = flow.plan()
    return planned


def _check_callback(name: str, job: object) -> None:
    if not isinstance(job, Bound):
        raise Refused(f"{name} is {job!r:.60}; pass task.bind(...)", field=name)
    if job.has_id:
        raise Refused(
            f"{name} has an id; leave it out, because the batch chooses the id so that the callback is "
            "enqueued once",
            field=name,
        )


def build_callback(
    plan: Plan, name: str, batch_id: str, stamp: int, keep: int | None, summary: BatchSummary
) -> EnqueueRequest:
    """Return the request for a callback. Its id is fixed, so a repeat leaves the stored callback as it is."""
    node = plan.nodes[0]
    id = callback_id(batch_id, stamp, name)
    own = {name: bytes(raw) for name, raw in node.attributes.items()}
    batch = {
        BATCH_ATTRIBUTE: msgspec.json.encode(batch_id),
        SUMMARY_ATTRIBUTE: msgspec.json.encode(summary),
    }
    data = JobData(
        payload=_payload(node),
        attributes={**own, **batch},
        priority=node.priority,
        overrides=node.overrides,
        retention=keep_at_least(node.retention, keep),
        key=node.key,
    )
    job = NewJob(id=id, data=data, run_at=node.run_at, delay=node.delay)
    digest = hashlib.blake2b(id.encode(), digest_size=16).hexdigest()
    return EnqueueRequest(job=job, on_conflict=Reject(failed=True), request_key=f"callback/{digest}")


def _payload(node: PlannedNode) -> bytes:
    return bytes(node.data) if isinstance(node.data, Raw) else bytes(node.payload or b"")
