"""The writes of the JSON API. Each is one call of the public API of dibs, and returns its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from attrs import frozen
from msgspec import UNSET

from dibs.client.options.queue_settings import parse_rate
from dibs.client.queue import Queue
from dibs.errors import Refused
from dibs.flow.batch.plan import flow_attributes, is_batch
from dibs.flow.batch.stored_batch import StoredBatch
from dibs.flow.stored_flow import StoredFlow
from dibs.model.wakeup import FLOWS
from dibs.web.reading.source import Source

#: Fields of `enqueue` that are settings of the job. Those whose values JSON cannot express are left out.
JOB_FIELDS: Final = frozenset(
    {
        *("id", "delay", "run_at", "priority", "request_key", "key", "attributes", "retention"),
        *("timeout", "max_retries", "max_timeouts", "max_stalls"),
    }
)
#: Fields of `amend`.
AMENDED: Final = frozenset({"data", "delay", "run_at", "priority", "attributes", "retention", "lease"})


@frozen
class Call:
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


@frozen
class Action:
    """A write, and the names of the fields that its body may have."""

    run: Callable[[Call], Awaitable[Mapping[str, Any]]]
    fields: frozenset[str] = frozenset()


async def _pause(call: Call) -> Mapping[str, Any]:
    await call.queue.pause()
    return {"answer": "paused"}


async def _resume(call: Call) -> Mapping[str, Any]:
    await call.queue.resume()
    return {"answer": "resumed"}


async def _configure(call: Call) -> Mapping[str, Any]:
    changes: dict[str, Any] = {
        name: parse_rate(name, value) if name in ("rate", "key_rate") and isinstance(value, str) else value
        for name, value in call.fields.items()
    }
    await call.queue.configure(**changes)
    return {"answer": "configured"}


async def _enqueue(call: Call) -> Mapping[str, Any]:
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


async def _task_call(call: Call, arguments: Any, settings: dict[str, Any]) -> Any:
    task = call.source.task(call.name)
    if task is None:
        raise Refused(
            f"the app has no task for the queue {call.name!r}; pass data in place of arguments",
            field="arguments",
        )
    if not isinstance(arguments, dict):
        raise Refused('arguments is no object; pass one by name, as in {"to": "ada"}', field="arguments")
    return await task.options(**settings).enqueue(**arguments)


async def _amend(call: Call) -> Mapping[str, Any]:
    if not call.fields:
        raise Refused(f"the body has no field; pass one of {', '.join(sorted(AMENDED))}")
    return {"answer": await call.queue.amend(call.id, **call.arguments())}


async def _cancel(call: Call) -> Mapping[str, Any]:
    running = call.fields.get("running", False)
    if not isinstance(running, bool):
        raise Refused(f"running is {running!r:.60}; pass true or false", field="running")
    return {"answer": await call.queue.cancel(call.id, running=running)}


async def _retry(call: Call) -> Mapping[str, Any]:
    return {"answer": await call.queue.retry_failed(call.id)}


async def _forget(call: Call) -> Mapping[str, Any]:
    return {"answer": "forgotten" if await call.queue.forget(call.id) else "not_found"}


async def _cancel_flow(call: Call) -> Mapping[str, Any]:
    [slot] = await (await call.source.storage()).get(FLOWS, [call.id])
    kind = StoredBatch if is_batch(flow_attributes(slot)) else StoredFlow
    return {"answer": await kind(call.source.flow_context, call.id).cancel()}


async def _retry_flow(call: Call) -> Mapping[str, Any]:
    return {"answer": await StoredFlow(call.source.flow_context, call.id).retry_failed()}


ACTIONS: Final[Mapping[str, Action]] = {
    "enqueue": Action(_enqueue, JOB_FIELDS | {"data", "arguments"}),
    "amend": Action(_amend, AMENDED),
    "cancel": Action(_cancel, frozenset({"running"})),
    "retry": Action(_retry),
    "forget": Action(_forget),
    "pause": Action(_pause),
    "resume": Action(_resume),
    "configure": Action(
        _configure, frozenset({"max_active", "per_key", "rate", "key_rate", "retention", "log_level"})
    ),
    "cancel_flow": Action(_cancel_flow),
    "retry_flow": Action(_retry_flow),
}


async def write(source: Source, name: str, params: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    """Do the write `name`, and return its answer. Raises Refused before anything is written."""
    action = ACTIONS[name]
    fields = _fields(body)
    for field in fields:
        if field not in action.fields:
            known = ", ".join(sorted(action.fields)) or "none"
            raise Refused(f"unknown field {field!r:.60}; {name} takes: {known}", field=field)
    return await action.run(Call(source, params.get("queue", ""), params.get("id", ""), fields))


def _fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a body; an empty one has none."""
    if not body:
        return {}
    try:
        found = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(f"the body is not JSON ({error}); send an object") from None
    if not isinstance(found, dict):
        raise Refused('the body is no object; send one, as in {"priority": 5}')
    return found


def _time(field: str, value: Any) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        hint = "write ISO 8601 with a time zone, as in 2030-01-01T09:00:00Z"
        raise Refused(f"{field} is {value!r:.60}; {hint}", field=field) from None
