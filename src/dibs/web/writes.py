"""The writes of the dashboard: forms for one job, for selected jobs, and the retry of all failed ones.

A step reads and retries a bounded number of jobs, and its answer carries the cursor of the next step. So the
server keeps no state between the steps, and any process can serve the next one.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from attrs import frozen

from dibs.client import stored_schedules
from dibs.client.options.arguments import duration_ms
from dibs.client.options.job_settings import JobSettings
from dibs.client.options.queue_settings import Rate, parse_rate
from dibs.client.queue import Queue
from dibs.errors import Refused
from dibs.flow.batch.plan import flow_attributes, is_batch
from dibs.flow.batch.stored_batch import StoredBatch
from dibs.flow.stored_flow import StoredFlow
from dibs.model.requests import JobPatch, Settings, SettingsPatch
from dibs.model.wakeup import FLOWS
from dibs.storage.protocol import Storage
from dibs.web.reading.errors import group_key
from dibs.web.reading.job import FormField, task_fields
from dibs.web.reading.queue import form_values
from dibs.web.reading.source import Budget, Source, gather
from dibs.web.safety import Form

#: Bounds of a step: failed jobs that it reads, and seconds.
STEP_JOBS: Final = 2_000
STEP_SECONDS: Final = 1.0
#: Failed jobs that one call reads and retries.
PAGE_SIZE: Final = 100
#: Most jobs without the answer "queued" that the page lists.
MAX_LISTED: Final = 100
#: A lease id that no storage grants. Its renewal changes no state, and the reply has the storage's time.
UNUSED_LEASE: Final = "0" * 32


@frozen
class RetryProgress:
    """The state of a bulk retry after a step."""

    queue: str
    group: str
    #: Only jobs that had failed by this time of the storage are retried, so that a retry ends although jobs
    #: fail again meanwhile.
    before: int
    #: Number of failed jobs that all steps have read, and the number that the queue had at the beginning.
    read: int
    total: int
    #: Answer of the storage -> number of jobs, over all steps.
    answers: Mapping[str, int]
    #: Queue, id and answer of the jobs of this step that were not enqueued.
    others: tuple[tuple[str, str, str], ...]
    #: Cursor of the next step; "" after the last one.
    after: str
    #: The time over which the starts are spread, as text such as "10m"; "" for at once.
    over: str = ""


async def storage_time(storage: Storage, queue: str) -> int:
    """Return the time of the storage in ms since the epoch."""
    return (await storage.renew([queue], UNUSED_LEASE, 1))[queue].now


async def count_matching(source: Source, queue: str, group: str) -> tuple[int, int, int]:
    """Return the number of failed jobs that match, of those read, and of all failed jobs of the queue."""
    storage = await source.storage()
    total = (await storage.counts([queue]))[queue].failed
    budget = Budget(STEP_JOBS * 5, STEP_SECONDS * 2)
    matching, after = 0, None
    while not budget.is_spent:
        page = await budget.list(storage, queue, "failed", after=after, limit=PAGE_SIZE)
        matching += sum(
            slot.outcome is not None and (not group or group == group_key(source, queue, slot.outcome.error))
            for _, slot in page.items
        )
        if (after := page.after) is None:
            break
    return matching, budget.read, total


async def retry_step(source: Source, state: RetryProgress) -> RetryProgress:
    """Retry the next failed jobs that match, and return the new state.

    The jobs of a call become due together. Their delay is the share of `over` that the jobs read before them
    have of all failed jobs. Raises Refused for an `over` that is no duration.
    """
    over = duration_ms("over", state.over) if state.over else 0
    storage = await source.storage()
    budget = Budget(STEP_JOBS, STEP_SECONDS)
    answers, others = Counter(state.answers), []
    after: str | None = state.after or None
    while True:
        read = state.read + budget.read
        delay = read * over // max(state.total, read, 1)
        page = await budget.list(storage, state.queue, "failed", after=after, limit=PAGE_SIZE)
        ids = [
            id
            for id, slot in page.items
            if slot.outcome is not None
            and slot.outcome.ended_at <= state.before
            and (not state.group or state.group == group_key(source, state.queue, slot.outcome.error))
        ]
        found = await storage.retry_failed(state.queue, ids, delay=delay) if ids else ()
        answers.update(found)
        others += [
            (state.queue, id, answer) for id, answer in zip(ids, found, strict=True) if answer != "queued"
        ]
        after = page.after
        if after is None or budget.is_spent:
            break
    return RetryProgress(
        queue=state.queue,
        group=state.group,
        before=state.before,
        read=state.read + budget.read,
        total=max(state.total, state.read + budget.read),
        answers=dict(answers),
        others=tuple(others[:MAX_LISTED]),
        after=after or "",
        over=state.over,
    )


async def retry_selected(source: Source, selected: Iterable[str]) -> RetryProgress:
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
        others += [(queue, id, answer) for id, answer in zip(ids, found, strict=True) if answer != "queued"]
    count = sum(map(len, by_queue.values()))
    only = next(iter(by_queue)) if len(by_queue) == 1 else ""
    return RetryProgress(only, "", 0, count, count, dict(answers), tuple(others[:MAX_LISTED]), "")


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


log = logging.getLogger("dibs.web")


@frozen
class Done:
    """The page that shows the result of a write, its parameters, and the code of the message on it."""

    page: str
    params: Mapping[str, str]
    code: str


@frozen
class Write:
    """A write: the parameters in its address, and the fields of its form."""

    source: Source
    params: Mapping[str, str]
    form: Form

    @property
    def name(self) -> str:
        return self.params.get("queue", "")

    @property
    def id(self) -> str:
        return self.params.get("id", "")

    @property
    def queue(self) -> Queue:
        return self.source.queue(self.name)

    def on_job(self, code: str) -> Done:
        """Return to the page of the id, or to the list of periodic tasks that has the button."""
        if self.form.get("from") == "periodic":
            return Done("periodic", {}, code)
        return Done("job", {"queue": self.name, "id": self.id}, code)

    def on_queue(self, code: str) -> Done:
        """Return to the page that has the button."""
        origin = self.form.get("from")
        if origin in ("overview", "periodic"):
            return Done(origin, {}, code)
        return Done("queue", {"name": self.name}, code)


def log_write(action: str, queue: str, subject: str, answer: str) -> None:
    """Log a write at the level INFO, without values of jobs."""
    log.info("%s of %s in the queue %r: %s", action, subject, queue, answer)


async def cancel_flow(write: Write) -> Done:
    """Cancel a flow or a batch: its open nodes or members are cancelled by a worker."""
    source, storage = write.source, await write.source.storage()
    [slot] = await storage.get(FLOWS, [write.id])
    kind = StoredBatch if is_batch(flow_attributes(slot)) else StoredFlow
    answer = await kind(source.flow_context, write.id).cancel()
    return Done("flow", {"id": write.id}, "flow_requested" if answer == "requested" else answer)


async def retry_flow(write: Write) -> Done:
    answer = await StoredFlow(write.source.flow_context, write.id).retry_failed()
    codes = {"queued": "flow_retried", "cancelled": "was_cancelled"}
    return Done("flow", {"id": write.id}, codes.get(answer, answer))


async def pause(write: Write) -> Done:
    await write.queue.pause()
    return write.on_queue("pause")


async def resume(write: Write) -> Done:
    await write.queue.resume()
    return write.on_queue("resume")


async def pause_all(write: Write) -> Done:
    await set_all_paused(write.source, paused=True)
    return Done("overview", {}, "pause_all")


async def resume_all(write: Write) -> Done:
    await set_all_paused(write.source, paused=False)
    return Done("overview", {}, "resume_all")


async def set_all_paused(source: Source, *, paused: bool) -> int:
    """Pause or resume the queues of the storage, and return the number of those that this changed.

    A queue that comes later keeps the default, not paused.
    """
    storage = await source.storage()
    queues = await source.census.queues()
    other = [name for name, settings in queues.items() if settings.paused != paused]
    await gather(other, lambda name: storage.configure(name, SettingsPatch(paused=paused)))
    return len(other)


async def configure(write: Write) -> Done:
    """Change the limits and the level of the log that the reader has changed in the form.

    The others may have been changed by somebody else since the form was shown.
    """
    settings = (await write.source.census.queues()).get(write.name, Settings())
    changes: dict[str, Any] = {}
    for name, stored in form_values(settings).items():
        shown = write.form.get(f"was-{name}", stored)
        text = write.form.get(name, shown).strip()
        if text != shown:
            changes[name] = _SETTINGS[name](name, text)
    if changes:
        await write.queue.configure(**changes)
    return write.on_queue("configure")


def _limit(field: str, text: str) -> int | None:
    return _whole_number(field, text, ", or nothing for no limit") if text else None


def _rate(field: str, text: str) -> Rate | None:
    return parse_rate(field, text) if text else None


#: Setting of the form -> the function that returns its value.
_SETTINGS: Final[Mapping[str, Callable[[str, str], Any]]] = {
    "max_active": _limit,
    "per_key": _limit,
    "rate": _rate,
    "key_rate": _rate,
    "max_waiting": _limit,
    "when_full": lambda _, text: text,
    "log_level": lambda _, text: text,
}


async def cancel(write: Write) -> Done:
    return write.on_job(await write.queue.cancel(write.id))


async def cancel_running(write: Write) -> Done:
    return write.on_job(await write.queue.cancel(write.id, running=True))


async def retry(write: Write) -> Done:
    answer = await write.queue.retry_failed(write.id)
    codes = {"queued": "retried", "cancelled": "was_cancelled"}
    return write.on_job(codes.get(answer, answer))


async def run_now(write: Write) -> Done:
    answer = await write.queue.amend(write.id, delay=0)
    return write.on_job("due" if answer == "amended" else answer)


async def pause_schedule(write: Write) -> Done:
    return await _set_schedule_paused(write, paused=True)


async def resume_schedule(write: Write) -> Done:
    return await _set_schedule_paused(write, paused=False)


async def _set_schedule_paused(write: Write, *, paused: bool) -> Done:
    storage = await write.source.storage()
    found = await stored_schedules.pause_schedule(storage, write.name, write.id, paused=paused)
    code = "schedule_paused" if paused else "schedule_resumed"
    return Done("periodic", {}, code if found else "no_schedule")


async def remove_schedule(write: Write) -> Done:
    found = await stored_schedules.remove_schedule(await write.source.storage(), write.name, write.id)
    return Done("periodic", {}, "schedule_removed" if found else "no_schedule")


async def forget(write: Write) -> Done:
    found = await write.queue.forget(write.id)
    return Done("queue", {"name": write.name}, "forgotten" if found else "not_found")


async def amend(write: Write) -> Done:
    """Change the fields of a waiting job that the form has: priority, delay and data."""
    form, changes = write.form, dict[str, Any]()
    if text := form.get("priority").strip():
        changes["priority"] = _whole_number("priority", text)
    if text := form.get("delay").strip():
        changes["delay"] = text
    if text := form.get("data").strip():
        changes["data"] = _json("data", text)
    if not changes:
        raise Refused("the form is empty; write a priority, a delay or the data of the job")
    return write.on_job(await write.queue.amend(write.id, **changes))


async def enqueue(write: Write) -> Done:
    """Enqueue a job. The arguments are checked against the type hints of the task, if the app has it."""
    settings = _job_settings(write.form)
    task = write.source.task(write.name)
    fields = None if task is None else task_fields(task)
    if task is not None and fields is not None:
        ticket = await task.options(**settings).enqueue(**_arguments(write.form, fields))
    else:
        ticket = await write.queue.enqueue(_json("data", write.form.get("data")), **settings)
    return Done("job", {"queue": write.name, "id": ticket.id}, ticket.verdict or "queued")


def _job_settings(form: Form) -> JobSettings:
    settings: JobSettings = {}
    if id := form.get("id"):
        settings["id"] = id
    if delay := form.get("delay").strip():
        settings["delay"] = delay
    if priority := form.get("priority").strip():
        settings["priority"] = _whole_number("priority", priority)
    return settings


def _arguments(form: Form, fields: tuple[FormField, ...]) -> dict[str, Any]:
    """Return the arguments of a call. A field that is left empty keeps the default of its parameter."""
    found: dict[str, Any] = {}
    for one in fields:
        text = form.get(f"arg-{one.name}")
        if text == "" and not one.required:
            continue
        # A browser sends the line breaks of a text area as CR LF.
        found[one.name] = text.replace("\r\n", "\n") if one.is_text else _json(one.name, text)
    return found


def _whole_number(field: str, text: str, alternative: str = "") -> int:
    try:
        return int(text)
    except ValueError:
        raise Refused(f"{field} is {text!r:.60}; write a whole number{alternative}", field=field) from None


def _json(field: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, RecursionError) as error:
        hint = 'write JSON, as in 5, true, "text" or {"name": 1}'
        raise Refused(f"{field} is not JSON ({error}); {hint}", field=field) from None


WRITES: Final[Mapping[str, Callable[[Write], Awaitable[Done]]]] = {
    "pause": pause,
    "resume": resume,
    "pause_all": pause_all,
    "resume_all": resume_all,
    "configure": configure,
    "cancel": cancel,
    "cancel_running": cancel_running,
    "retry": retry,
    "run_now": run_now,
    "pause_schedule": pause_schedule,
    "resume_schedule": resume_schedule,
    "remove_schedule": remove_schedule,
    "forget": forget,
    "amend": amend,
    "enqueue": enqueue,
    "cancel_flow": cancel_flow,
    "retry_flow": retry_flow,
}
