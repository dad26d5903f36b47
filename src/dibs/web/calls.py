"""The writes of the dashboard to one job, one queue or one flow, which its forms and its JSON API share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

from attrs import frozen
from msgspec import UNSET

from dibs.client import stored_schedules
from dibs.client.options.queue_settings import parse_rate
from dibs.client.queue import Queue
from dibs.errors import Refused
from dibs.flow.batch.plan import flow_attributes, is_batch
from dibs.flow.batch.stored_batch import StoredBatch
from dibs.flow.stored_flow import StoredFlow
from dibs.model.requests import SettingsPatch
from dibs.model.wakeup import FLOWS
from dibs.web.reading.source import Source, gather

Answer = Mapping[str, Any]

#: Fields of `enqueue` that are settings of the job. Those whose values JSON cannot express are left out.
JOB_FIELDS: Final = frozenset(
    {
        *("id", "delay", "run_at", "priority", "request_key", "key", "attributes", "retention"),
        *("timeout", "max_retries", "max_timeouts", "max_stalls"),
    }
)
#: Fields of `amend`.
AMENDED: Final = frozenset({"data", "delay", "run_at", "priority", "attributes", "retention", "lease"})
#: Fields of `configure`.
CONFIGURED: Final = frozenset(
    {
        *("max_active", "per_key", "rate", "key_rate", "max_waiting", "when_full", "fair", "shares"),
        *("retention", "log_level"),
    }
)


@frozen
class WriteCall:
    """A write: the queue and the id in its address, and the fields of its body."""

    source: Source
    name: str
    id: str
    fields: Mapping[str, Any]

    @property
    def queue(self) -> Queue:
        return self.source.queue(self.name)

    def arguments(self) -> dict[str, Any]:
        """Return the fields as keyword arguments: a `run_at` in ISO 8601 becomes a datetime."""
        found = dict(self.fields)
        if "run_at" in found:
            found["run_at"] = _time("run_at", found["run_at"])
        return found


async def _pause(call: WriteCall) -> Answer:
    await call.queue.pause()
    return {"answer": "paused"}


async def _resume(call: WriteCall) -> Answer:
    await call.queue.resume()
    return {"answer": "resumed"}


async def _pause_all(call: WriteCall) -> Answer:
    return {"answer": "paused", "queues": await _set_all_paused(call.source, paused=True)}


async def _resume_all(call: WriteCall) -> Answer:
    return {"answer": "resumed", "queues": await _set_all_paused(call.source, paused=False)}


async def _set_all_paused(source: Source, *, paused: bool) -> int:
    """Pause or resume the queues of the storage, and return the number of those that this changed.

    A queue that comes later keeps the default, not paused.
    """
    storage = await source.storage()
    queues = await source.census.queues()
    other = [name for name, settings in queues.items() if settings.paused != paused]
    await gather(other, lambda name: storage.configure(name, SettingsPatch(paused=paused)))
    return len(other)


async def _configure(call: WriteCall) -> Answer:
    changes: dict[str, Any] = {
        name: parse_rate(name, value) if name in ("rate", "key_rate") and isinstance(value, str) else value
        for name, value in call.fields.items()
    }
    await call.queue.configure(**changes)
    return {"answer": "configured"}


async def _enqueue(call: WriteCall) -> Answer:
    """Enqueue `data`, or a call of the task with the `arguments`, which its type hints check."""
    settings = call.arguments()
    data, arguments = settings.pop("data", UNSET), settings.pop("arguments", UNSET)
    if (data is UNSET) == (arguments is UNSET):
        raise Refused("pass data, or the arguments of a task: one of the two", field="data")
    if data is not UNSET:
        ticket = await call.queue.enqueue(data, **settings)
    else:
        ticket = await _task_call(call, arguments, settings)
    return {"answer": ticket.verdict, "id": ticket.id, "revision": ticket.revision}


async def _task_call(call: WriteCall, arguments: Any, settings: dict[str, Any]) -> Any:
    task = call.source.task(call.name)
    if task is None:
        raise Refused(
            f"the app has no task for the queue {call.name!r}; pass data in place of arguments",
            field="arguments",
        )
    if not isinstance(arguments, dict):
        raise Refused('arguments is no object; pass one by name, as in {"to": "ada"}', field="arguments")
    return await task.options(**settings).enqueue(**arguments)


async def _amend(call: WriteCall) -> Answer:
    if not call.fields:
        raise Refused(f"the body has no field; pass one of {', '.join(sorted(AMENDED))}")
    return {"answer": await call.queue.amend(call.id, **call.arguments())}


async def _signal(call: WriteCall) -> Answer:
    name, key = call.fields.get("name", ""), call.fields.get("request_key")
    return {"answer": await call.queue.signal(call.id, name, call.fields.get("value"), request_key=key)}


async def _cancel(call: WriteCall) -> Answer:
    running = call.fields.get("running", False)
    if not isinstance(running, bool):
        raise Refused(f"running is {running!r:.60}; pass true or false", field="running")
    return {"answer": await call.queue.cancel(call.id, running=running)}


async def _retry(call: WriteCall) -> Answer:
    return {"answer": await call.queue.retry_failed(call.id)}


async def _forget(call: WriteCall) -> Answer:
    return {"answer": "forgotten" if await call.queue.forget(call.id) else "not_found"}


async def _cancel_flow(call: WriteCall) -> Answer:
    [slot] = await (await call.source.storage()).get(FLOWS, [call.id])
    kind = StoredBatch if is_batch(flow_attributes(slot)) else StoredFlow
    return {"answer": await kind(call.source.flow_context, call.id).cancel()}


async def _retry_flow(call: WriteCall) -> Answer:
    return {"answer": await StoredFlow(call.source.flow_context, call.id).retry_failed()}


async def _pause_schedule(call: WriteCall) -> Answer:
    return await _set_schedule_paused(call, paused=True)


async def _resume_schedule(call: WriteCall) -> Answer:
    return await _set_schedule_paused(call, paused=False)


async def _set_schedule_paused(call: WriteCall, *, paused: bool) -> Answer:
    storage = await call.source.storage()
    found = await stored_schedules.pause_schedule(storage, call.name, call.id, paused=paused)
    return {"answer": ("schedule_paused" if paused else "schedule_resumed") if found else "no_schedule"}


async def _remove_schedule(call: WriteCall) -> Answer:
    found = await stored_schedules.remove_schedule(await call.source.storage(), call.name, call.id)
    return {"answer": "schedule_removed" if found else "no_schedule"}


def _time(field: str, value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        hint = "write ISO 8601 with a time zone, as in 2030-01-01T09:00:00Z"
        raise Refused(f"{field} is {value!r:.60}; {hint}", field=field) from None


#: Name -> the function that does the write. Its answer has the answer of the storage, `answer`.
CALLS: Final[Mapping[str, Callable[[WriteCall], Awaitable[Answer]]]] = {
    "enqueue": _enqueue,
    "amend": _amend,
    "signal": _signal,
    "cancel": _cancel,
    "retry": _retry,
    "forget": _forget,
    "pause": _pause,
    "resume": _resume,
    "pause_all": _pause_all,
    "resume_all": _resume_all,
    "configure": _configure,
    "pause_schedule": _pause_schedule,
    "resume_schedule": _resume_schedule,
    "remove_schedule": _remove_schedule,
    "cancel_flow": _cancel_flow,
    "retry_flow": _retry_flow,
}
