"""The writes of the dashboard. Each is one call of the public API, and returns the page to go to."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from attrs import frozen

from dibs.client import stored_schedules
from dibs.client.options.job_settings import JobSettings
from dibs.client.options.queue_settings import Rate, parse_rate
from dibs.client.queue import Queue
from dibs.errors import Refused
from dibs.flow.batch.plan import flow_attributes, is_batch
from dibs.flow.batch.stored_batch import StoredBatch
from dibs.flow.stored_flow import StoredFlow
from dibs.model.requests import Settings
from dibs.model.wakeup import FLOWS
from dibs.web.reading.jobs.form import FormField, task_fields
from dibs.web.reading.queues.settings import form_values
from dibs.web.reading.source import Source
from dibs.web.safety import Form

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
