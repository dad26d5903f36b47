"""An action on all jobs of a list that match a filter or belong to a group of failures, in steps.

A step reads a bounded number of jobs and does the action, and its answer carries the cursor of the next step.
So the server keeps no state between the steps, and any process can serve the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final
from urllib.parse import unquote

from attrs import evolve, field, frozen

from dibs.client.options.arguments import duration_ms
from dibs.client.stored_schedules import storage_now
from dibs.errors import Refused
from dibs.model.job import Slot
from dibs.model.results import State
from dibs.storage.protocol import Storage
from dibs.web.reading.errors import group_key
from dibs.web.reading.queue import STATES, Filter
from dibs.web.reading.source import Budget, Source
from dibs.web.safety import Form
from dibs.web.writes import ACTIONS, MAX_LISTED, OFFERED, Action

#: Bounds of a step: jobs that it reads, and seconds.
STEP_JOBS: Final = 2_000
STEP_SECONDS: Final = 1.0
#: Jobs that one call reads and changes.
PAGE_SIZE: Final = 100
#: Largest number in a hidden field.
MOST: Final = 2**53


@frozen
class Bulk:
    """An action on all jobs of a list that match, after a step."""

    queue: str
    #: Name of the action, a key of ACTIONS.
    name: str = "retry"
    #: The state of the list, and the jobs of it that match.
    state: State = "failed"
    wanted: Filter = field(factory=Filter)
    #: Key of a group of failures; "" for all jobs.
    group: str = ""
    #: Only jobs that entered the list by this time of the storage match, so that the steps end although
    #: others enter it meanwhile.
    before: int = 0
    #: Number of jobs that all steps have read, and the number in the list at the beginning.
    read: int = 0
    total: int = 0
    #: Answer of the storage -> number of jobs, over all steps.
    answers: Mapping[str, int] = {}
    #: Queue, id and answer of the jobs of this step for which the action has not happened.
    others: tuple[tuple[str, str, str], ...] = ()
    #: Cursor of the next step; "" after the last one.
    after: str = ""
    #: The time over which the starts of a retry are spread, as text such as "10m"; "" for at once.
    over: str = ""

    @property
    def action(self) -> Action:
        return ACTIONS[self.name]

    @property
    def done(self) -> int:
        return sum(count for answer, count in self.answers.items() if answer in self.action.good)

    def selects(self, source: Source, id: str, slot: Slot) -> bool:
        """Return whether an entry of the list matches."""
        return (
            _entered_at(slot, self.state) <= self.before
            and (not self.group or self.group == _group_of(source, self.queue, slot))
            and self.wanted.selects(source, self.queue, id, slot, self.state)
        )


def _entered_at(slot: Slot, state: State) -> int:
    """Return the time of the end or the enqueue of a listed job, in ms since the epoch."""
    if state in ("completed", "failed", "cancelled"):
        return 0 if slot.outcome is None else slot.outcome.ended_at
    job = slot.successor if state == "blocked" else slot.current
    return 0 if job is None else job.enqueued_at


def _group_of(source: Source, queue: str, slot: Slot) -> str:
    return "" if slot.outcome is None else group_key(source, queue, slot.outcome.error)


def bulk_from(params: Mapping[str, str], form: Form) -> Bulk:
    """Return the state that an address and a form carry. Raises Refused for an action that the list lacks.

    Wrong numbers only change what their sender sees.
    """
    state, name = params.get("state", "failed"), params.get("act", "retry")
    if state not in STATES:
        raise Refused(f"state is {state!r:.60}; use one of {', '.join(STATES)}", field="state")
    if name not in OFFERED[state]:
        raise Refused(f"act is {name!r:.60}; use one of {', '.join(OFFERED[state])}", field="act")
    return Bulk(
        queue=params.get("queue", ""),
        name=name,
        state=state,
        wanted=Filter.from_params(params),
        group=params.get("group", ""),
        before=_number(form.get("before")),
        read=_number(form.get("read")),
        total=_number(form.get("total")),
        answers={
            key.removeprefix("answer-"): _number(value)
            for key, value in form.pairs
            if key.startswith("answer-")
        },
        after=form.get("after"),
        over=form.get("over").strip() if name == "retry" else "",
    )


def _number(text: str) -> int:
    return min(int(text), MOST) if text.isascii() and text.isdigit() and len(text) < 20 else 0


async def count_matching(source: Source, bulk: Bulk) -> tuple[Bulk, int]:
    """Return the state before the first step, and the number of jobs that match among those that it read."""
    storage = await source.storage()
    total = getattr((await storage.counts([bulk.queue]))[bulk.queue], bulk.state)
    bulk = evolve(bulk, before=await storage_now(storage, bulk.queue))
    budget = Budget(STEP_JOBS * 5, STEP_SECONDS * 2)
    matching, after = 0, None
    while not budget.is_spent:
        page = await budget.list(storage, bulk.queue, bulk.state, after=after, limit=PAGE_SIZE)
        matching += sum(bulk.selects(source, id, slot) for id, slot in page.items)
        if (after := page.after) is None:
            break
    return evolve(bulk, read=budget.read, total=max(total, budget.read)), matching


async def bulk_step(source: Source, bulk: Bulk) -> Bulk:
    """Do the action on the next jobs that match, and return the new state.

    The retried jobs of a call become due together. Their delay is the share of `over` that the jobs read
    before them have of all. Raises Refused for an `over` that is no duration.
    """
    over = duration_ms("over", bulk.over) if bulk.over else 0
    storage = await source.storage()
    budget = Budget(STEP_JOBS, STEP_SECONDS)
    answers, others = Counter(bulk.answers), []
    after: str | None = bulk.after or None
    while True:
        read = bulk.read + budget.read
        page = await budget.list(storage, bulk.queue, bulk.state, after=after, limit=PAGE_SIZE)
        ids = [id for id, slot in page.items if bulk.selects(source, id, slot)]
        call = bulk.action.call
        if over:
            call = partial(_retry_later, read * over // max(bulk.total, read, 1))
        found = await call(storage, bulk.queue, ids) if ids else ()
        answers.update(found)
        others += _others(bulk, ids, found)
        after = page.after
        if after is None or budget.is_spent:
            break
    read = bulk.read + budget.read
    return evolve(
        bulk,
        read=read,
        total=max(bulk.total, read),
        answers=dict(answers),
        others=tuple(others[:MAX_LISTED]),
        after=after or "",
    )


async def _retry_later(delay: int, storage: Storage, queue: str, ids: list[str]) -> tuple[str, ...]:
    return tuple(await storage.retry_failed(queue, ids, delay=delay))


def _others(bulk: Bulk, ids: Iterable[str], answers: Iterable[str]) -> list[tuple[str, str, str]]:
    return [
        (bulk.queue, id, answer)
        for id, answer in zip(ids, answers, strict=True)
        if answer not in bulk.action.good
    ]


async def retry_selected(source: Source, selected: Iterable[str]) -> Bulk:
    """Retry the selected jobs, each written as `queue/id` with both parts percent-encoded."""
    storage = await source.storage()
    by_queue: dict[str, list[str]] = {}
    for text in selected:
        queue, slash, id = text.partition("/")
        if slash:
            by_queue.setdefault(unquote(queue), []).append(unquote(id))
    answers: Counter[str] = Counter()
    others: list[tuple[str, str, str]] = []
    for queue, ids in by_queue.items():
        found = await storage.retry_failed(queue, ids)
        answers.update(found)
        others += _others(Bulk(queue), ids, found)
    count = sum(map(len, by_queue.values()))
    only = next(iter(by_queue)) if len(by_queue) == 1 else ""
    return Bulk(only, read=count, total=count, answers=dict(answers), others=tuple(others[:MAX_LISTED]))
