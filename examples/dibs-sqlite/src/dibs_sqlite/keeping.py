"""Verbs by id, and those that keep a queue in order."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from dibs.model import events, rules, transitions
from dibs.model.check_values import check_attributes
from dibs.model.job import EMPTY, Job, Slot
from dibs.model.limits import Limits
from dibs.model.requests import Cancelled, JobPatch, Settings, SettingsPatch
from dibs.model.results import AmendStatus, CancelStatus, PruneResult, RetryFailedStatus
from dibs_sqlite import settling
from dibs_sqlite.step import Queue, Step


def cancel(step: Step, name: str, ids: Sequence[str], running: bool) -> list[CancelStatus]:  # noqa: FBT001
    """Cancel what waits or is blocked; with `running`, ask what is active to stop."""
    queue = step.queue(name)
    return [_cancel(step, queue, id, running=running) for id in ids]


def _cancel(step: Step, queue: Queue, id: str, *, running: bool) -> CancelStatus:
    slot = queue.get(id)
    job, verdict = slot.current, rules.cancel(slot, step.now, running=running)
    if job is None or verdict == "active":
        return verdict
    slot = _without_successor(step, queue, id, slot)
    if job.run is None or (running and job.run.lease is None):
        settling.end(step, queue, slot, job, Cancelled())
    elif running and not job.run.cancel_requested:
        queue.put(id, slot, transitions.request_cancel(slot, job, job.run))
        queue.tell(events.note_event("cancel_requested", id, step.now, job))
    return verdict


def _without_successor(step: Step, queue: Queue, id: str, slot: Slot) -> Slot:
    successor = slot.successor
    if successor is None:
        return slot
    after = transitions.drop_successor(slot, successor, step.now)
    queue.put(id, slot, after)
    queue.tell(events.dropped_event(id, successor, step.now))
    return after


def amend(step: Step, name: str, id: str, patch: JobPatch, limits: Limits) -> AmendStatus:
    """Change what a patch names, whole or not at all. Raises Refused when attributes grow too large."""
    queue = step.queue(name)
    slot = queue.get(id)
    verdict = rules.amend(slot, patch, step.now)
    if verdict != "amended":
        return verdict
    after = transitions.amend(slot, patch, step.now)
    for part in (after.current, after.successor):
        if part is not None and patch.attributes is not UNSET:
            check_attributes(part.data.attributes, limits)
    queue.put(id, slot, after)
    queue.tell(events.note_event("amended", id, step.now, after.current or after.outcome))
    return verdict


def retry_failed(step: Step, name: str, ids: Sequence[str]) -> list[RetryFailedStatus]:
    """Let failed jobs wait again."""
    queue = step.queue(name)
    return [_retry_failed(step, queue, id) for id in ids]


def _retry_failed(step: Step, queue: Queue, id: str) -> RetryFailedStatus:
    slot = queue.get(id)
    verdict, outcome = rules.retry_failed(slot, step.now), slot.outcome
    if verdict != "queued" or outcome is None or outcome.data is None:
        return verdict
    after = transitions.retry_failed(slot, outcome, id, outcome.data, step.now, step.draw())
    queue.put(id, slot, after)
    queue.tell(events.note_event("queued", id, step.now, after.current))
    return verdict


def forget(step: Step, name: str, ids: Sequence[str]) -> list[bool]:
    """Remove everything of each id. No fence floor is kept: numbers are drawn above every earlier one."""
    queue = step.queue(name)
    return [_forget(step, queue, id) for id in ids]


def _forget(step: Step, queue: Queue, id: str) -> bool:
    slot = queue.get(id)
    seen = rules.visible(slot, step.now)
    if slot is not EMPTY:
        queue.put(id, slot, EMPTY)
    if seen is EMPTY:
        return False
    about: Job | None = seen.current
    queue.tell(events.note_event("forgotten", id, step.now, about or seen.outcome))
    return True


def configure(step: Step, name: str, patch: SettingsPatch) -> Settings:
    """Change what a patch names."""
    queue = step.queue(name)
    before = queue.settings
    named = {field: getattr(patch, field) for field in patch.__struct_fields__}
    after = replace(before, **{field: value for field, value in named.items() if value is not UNSET})
    if after == before:
        return before
    # The step of a change of the log level itself is told if either level tells it.
    if after.log_level == "all":
        queue.set(after)
    if before.paused != after.paused:
        queue.tell(events.note_event("paused" if after.paused else "resumed", "", step.now))
    if replace(before, paused=after.paused) != after:
        queue.tell(events.note_event("configured", "", step.now))
    queue.set(after)
    return after


def prune(step: Step, name: str, limit: int) -> PruneResult:
    """Remove what has expired."""
    queue = step.queue(name)
    ids = [id for (id,) in queue.query("expired", now=step.now, limit=limit).fetchall()]
    for id in ids:
        slot = queue.get(id)
        queue.put(id, slot, EMPTY if slot.current is None else replace(slot, outcome=None))
    keys = queue.query("prune_request_keys", now=step.now, limit=limit).rowcount
    return PruneResult(
        outcomes=len(ids),
        request_keys=keys,
        events=queue.trim(oldest_at=step.now - queue.settings.log_age),
        more=limit in (len(ids), keys),
    )
