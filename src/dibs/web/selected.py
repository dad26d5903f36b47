"""Writes on the jobs that a reader has selected in a list: cancel, run now, retry, forget."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from attrs import frozen

from dibs.errors import Refused
from dibs.model.requests import JobPatch
from dibs.storage.protocol import Storage
from dibs.web.reading.source import gather

#: Most jobs without the wanted answer that the page lists.
MAX_LISTED: Final = 100

Answers = Sequence[str]


async def _cancel(storage: Storage, queue: str, ids: Sequence[str]) -> Answers:
    return await storage.cancel(queue, ids)


async def _cancel_running(storage: Storage, queue: str, ids: Sequence[str]) -> Answers:
    return await storage.cancel(queue, ids, running=True)


async def _retry(storage: Storage, queue: str, ids: Sequence[str]) -> Answers:
    return await storage.retry_failed(queue, ids)


async def _forget(storage: Storage, queue: str, ids: Sequence[str]) -> Answers:
    return ["forgotten" if found else "not_found" for found in await storage.forget(queue, ids)]


async def _run_now(storage: Storage, queue: str, ids: Sequence[str]) -> Answers:
    async def one(id: str) -> str:
        return await storage.amend(queue, id, JobPatch(delay=0))

    return await gather(ids, one)


@frozen
class Action:
    """A write on selected jobs."""

    #: Label of its button, and the question before it; "" for an action that asks no question.
    label: str
    question: str
    #: Answers of the storage that mean that the action has happened.
    good: frozenset[str]
    call: Callable[[Storage, str, Sequence[str]], Awaitable[Answers]]


ACTIONS: Final[Mapping[str, Action]] = {
    "run_now": Action("Run now", "", frozenset(("amended",)), _run_now),
    "cancel": Action("Cancel", "", frozenset(("cancelled",)), _cancel),
    "cancel_running": Action(
        "Cancel the runs",
        "The workers are asked to stop these runs. Their successors are dropped.",
        frozenset(("cancelled", "requested")),
        _cancel_running,
    ),
    "retry": Action("Retry", "", frozenset(("queued",)), _retry),
    "forget": Action(
        "Forget",
        "These jobs are removed with their successors and outcomes. A worker that runs one of them loses it.",
        frozenset(("forgotten",)),
        _forget,
    ),
}
#: State of a list -> the actions on its jobs.
OFFERED: Final[Mapping[str, tuple[str, ...]]] = {
    "waiting": ("run_now", "cancel", "forget"),
    "scheduled": ("run_now", "cancel", "forget"),
    "active": ("cancel_running",),
    "handed_off": ("cancel_running", "forget"),
    "blocked": ("cancel",),
    "failed": ("retry", "forget"),
    "completed": ("forget",),
    "cancelled": ("forget",),
}


@frozen
class Selection:
    """Selected jobs of a queue, and the answers of the storage after the action."""

    queue: str
    #: Name of the action, a key of ACTIONS.
    name: str
    ids: tuple[str, ...]
    #: Answer of the storage -> number of jobs; empty before the action.
    answers: Mapping[str, int] = {}
    #: Id and answer of the jobs for which the action has not happened.
    others: tuple[tuple[str, str], ...] = ()

    @property
    def action(self) -> Action:
        return ACTIONS[self.name]

    @property
    def done(self) -> int:
        return sum(count for answer, count in self.answers.items() if answer in self.action.good)


def select(queue: str, name: str, ids: Sequence[str]) -> Selection:
    """Return a selection. Raises Refused for an unknown action and without a job."""
    if name not in ACTIONS:
        raise Refused(f"the action is {name!r:.60}; use one of {', '.join(ACTIONS)}", field="act")
    if not ids:
        raise Refused("no job is selected; check the boxes of one or more jobs", field="job")
    return Selection(queue, name, tuple(ids))


async def act(storage: Storage, selection: Selection) -> Selection:
    """Do the action, and return the selection with its answers. Raises Refused, StorageError."""
    answers = await selection.action.call(storage, selection.queue, selection.ids)
    others = [
        (id, answer)
        for id, answer in zip(selection.ids, answers, strict=True)
        if answer not in selection.action.good
    ]
    return Selection(
        selection.queue, selection.name, selection.ids, dict(Counter(answers)), tuple(others[:MAX_LISTED])
    )
