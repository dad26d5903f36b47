"""The writes of the dashboard: forms for one job, and for selected jobs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from attrs import field, frozen

from dibs.client.options.job_settings import JobSettings
from dibs.errors import Refused
from dibs.model.requests import JobPatch, Settings
from dibs.storage.protocol import Storage
from dibs.web.calls import CALLS, WriteCall
from dibs.web.reading.job import FormField, task_fields
from dibs.web.reading.queue import form_values
from dibs.web.reading.source import Source, gather
from dibs.web.safety import Form

#: Most jobs without the answer "queued" that the page lists.
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
    """A write on selected jobs, or on all that match."""

    #: Label of its button, the question before it, "" for an action that asks no question, and the words for
    #: the jobs to which it has happened.
    label: str
    question: str
    done: str
    #: Answers of the storage that mean that the action has happened.
    good: frozenset[str]
    call: Callable[[Storage, str, Sequence[str]], Awaitable[Answers]]


ACTIONS: Final[Mapping[str, Action]] = {
    "run_now": Action("Run now", "", "due now", frozenset(("amended",)), _run_now),
    "cancel": Action("Cancel", "", "cancelled", frozenset(("cancelled",)), _cancel),
    "cancel_running": Action(
        "Cancel the runs",
        "The workers are asked to stop these runs. Their successors are dropped.",
        "asked to stop",
        frozenset(("cancelled", "requested")),
        _cancel_running,
    ),
    "retry": Action("Retry", "", "enqueued again", frozenset(("queued",)), _retry),
    "forget": Action(
        "Forget",
        "These jobs are removed with their successors and outcomes. A worker that runs one of them loses it.",
        "forgotten",
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
    """A write of a form: the parameters in its address, and its fields."""

    source: Source
    params: Mapping[str, str]
    form: Form

    @property
    def name(self) -> str:
        return self.params.get("queue", "")

    @property
    def id(self) -> str:
        return self.params.get("id", "")


def log_write(action: str, queue: str, subject: str, answer: str) -> None:
    """Log a write at the level INFO, without values of jobs."""
    log.info("%s of %s in the queue %r: %s", action, subject, queue, answer)


async def do_write(name: str, write: Write) -> Done:
    """Do the write of a form, a key of WRITES. Raises Refused, StorageError."""
    form = WRITES[name]
    fields = await form.fields(write) if callable(form.fields) else form.fields
    call = WriteCall(write.source, write.name, write.id, fields)
    answer = await CALLS[form.call or name](call)
    page, params = form.page(write)
    if "id" in answer:
        params = {**params, "id": answer["id"]}
    return Done(page, params, form.codes.get(answer["answer"], answer["answer"]))


# -- the pages after a write --------------------------------------------------------------------------


def _job_page(write: Write) -> tuple[str, dict[str, str]]:
    """Return the page of the id, or the list of periodic tasks that has the button."""
    if write.form.get("from") == "periodic":
        return "periodic", {}
    return "job", {"queue": write.name, "id": write.id}


def _queue_page(write: Write) -> tuple[str, dict[str, str]]:
    """Return the page that has the button."""
    origin = write.form.get("from")
    return (origin, {}) if origin in ("overview", "periodic") else ("queue", {"name": write.name})


# -- the fields of a form -----------------------------------------------------------------------------


async def _configured(write: Write) -> dict[str, Any]:
    """Return the limits and the level of the log that the reader has changed in the form.

    The others may have been changed by somebody else since the form was shown.
    """
    settings = (await write.source.census.queues()).get(write.name, Settings())
    changes: dict[str, Any] = {}
    for name, stored in form_values(settings).items():
        shown = write.form.get(f"was-{name}", stored)
        text = write.form.get(name, shown).strip()
        if text == shown:
            continue
        if name == "fair":
            changes[name] = text == "yes"
        elif name in ("max_active", "per_key", "max_waiting") and text:
            changes[name] = _whole_number(name, text, ", or nothing for no limit")
        else:
            changes[name] = text or None
    if shares := write.form.get("shares").strip():
        changes["shares"] = dict(map(_share, shares.splitlines()))
    return changes


def _share(line: str) -> tuple[str, int | None]:
    """Return a key and its new share from a line such as "acme=3"; "acme=none" removes the entry."""
    key, equals, share = (part.strip() for part in line.rpartition("="))
    if not equals:
        raise Refused(
            f"shares has the line {line!r:.60}; write a key and a number, as acme=3", field="shares"
        )
    return key, None if share == "none" else _whole_number("shares", share, ", or none")


async def _amended(write: Write) -> dict[str, Any]:
    """Return the fields of a waiting job that the form has: priority, delay and data."""
    form, changes = write.form, dict[str, Any]()
    if text := form.get("priority").strip():
        changes["priority"] = _whole_number("priority", text)
    if text := form.get("delay").strip():
        changes["delay"] = text
    if text := form.get("data").strip():
        changes["data"] = _json("data", text)
    if not changes:
        raise Refused("the form is empty; write a priority, a delay or the data of the job")
    return changes


async def _signalled(write: Write) -> dict[str, Any]:
    """Return the signal that the form sends; without a value, null."""
    text = write.form.get("value").strip()
    return {"name": write.form.get("name"), "value": _json("value", text) if text else None}


async def _enqueued(write: Write) -> dict[str, Any]:
    """Return the settings of a job with its data, or with the arguments of the task if the app has it."""
    settings: dict[str, Any] = {**_job_settings(write.form)}
    task = write.source.task(write.name)
    fields = None if task is None else task_fields(task)
    if fields is None:
        return {**settings, "data": _json("data", write.form.get("data"))}
    return {**settings, "arguments": _arguments(write.form, fields)}


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


@frozen
class FormWrite:
    """A write by a form."""

    #: Returns the page that shows the result, and its parameters.
    page: Callable[[Write], tuple[str, dict[str, str]]]
    #: The fields of the call, or a function that reads them from the form.
    fields: Mapping[str, Any] | Callable[[Write], Awaitable[Mapping[str, Any]]] = field(factory=dict)
    #: Name of the call, a key of CALLS; "" for the name of the write.
    call: str = ""
    #: Answer of the call -> the code of the message, where it is another text.
    codes: Mapping[str, str] = {}


def _page(name: str) -> Callable[[Write], tuple[str, dict[str, str]]]:
    return lambda _: (name, {})


def _flow_page(write: Write) -> tuple[str, dict[str, str]]:
    return "flow", {"id": write.id}


WRITES: Final[Mapping[str, FormWrite]] = {
    "pause": FormWrite(_queue_page, codes={"paused": "pause"}),
    "resume": FormWrite(_queue_page, codes={"resumed": "resume"}),
    "pause_all": FormWrite(_page("overview"), codes={"paused": "pause_all"}),
    "resume_all": FormWrite(_page("overview"), codes={"resumed": "resume_all"}),
    "configure": FormWrite(_queue_page, _configured, codes={"configured": "configure"}),
    "cancel": FormWrite(_job_page),
    "cancel_running": FormWrite(_job_page, {"running": True}, "cancel"),
    "retry": FormWrite(_job_page, codes={"queued": "retried", "cancelled": "was_cancelled"}),
    "run_now": FormWrite(_job_page, {"delay": 0}, "amend", {"amended": "due"}),
    "pause_schedule": FormWrite(_page("periodic")),
    "resume_schedule": FormWrite(_page("periodic")),
    "remove_schedule": FormWrite(_page("periodic")),
    "forget": FormWrite(lambda write: ("queue", {"name": write.name})),
    "amend": FormWrite(_job_page, _amended),
    "signal": FormWrite(_job_page, _signalled, codes={"full": "no_room", "absent": "not_found"}),
    "enqueue": FormWrite(_job_page, _enqueued),
    "cancel_flow": FormWrite(_flow_page, codes={"requested": "flow_requested"}),
    "retry_flow": FormWrite(_flow_page, codes={"queued": "flow_retried", "cancelled": "was_cancelled"}),
}
