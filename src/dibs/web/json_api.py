"""The JSON API of the dashboard, below /api/: each page for programs, and each write as a POST."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import Any, Final

import attrs
import msgspec
from attrs import define, frozen
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dibs.client.options.queue_settings import parse_rate
from dibs.client.queue import Queue
from dibs.errors import DibsError, Refused
from dibs.flow.batch.plan import flow_attributes, is_batch
from dibs.flow.batch.stored_batch import StoredBatch
from dibs.flow.stored_flow import StoredFlow
from dibs.model.wakeup import FLOWS
from dibs.web.pages import Pages
from dibs.web.reading.source import Source
from dibs.web.safety import (
    ForbiddenError,
    error_response,
    failure_response,
    is_json,
    json_response,
    read_body,
)
from dibs.web.writes import log_write, set_all_paused

#: Parts of a page that only its drawing and its forms need.
_LEFT_OUT: Final = frozenset(("desk", "phone", "form", "editable"))


async def page_response(pages: Pages, name: str, params: Mapping[str, str]) -> Response:
    """Return a page as JSON. An unknown name is an error with the status 404."""
    if name not in pages.kinds:
        known = ", ".join(pages.kinds)
        return error_response(404, "NotFound", f"there is no page {name!r}; known pages: {known}")
    try:
        model = await pages.read(pages.key(name, params))
    except DibsError as error:
        return failure_response(error)
    return json_response(
        {
            field.name: getattr(model, field.name)
            for field in attrs.fields(type(model))
            if field.name not in _LEFT_OUT
        }
    )


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


@frozen
class ApiWrite:
    """A write, and the names of the fields that its body may have."""

    run: Callable[[WriteCall], Awaitable[Mapping[str, Any]]]
    fields: frozenset[str] = frozenset()


async def _pause(call: WriteCall) -> Mapping[str, Any]:
    await call.queue.pause()
    return {"answer": "paused"}


async def _resume(call: WriteCall) -> Mapping[str, Any]:
    await call.queue.resume()
    return {"answer": "resumed"}


async def _pause_all(call: WriteCall) -> Mapping[str, Any]:
    return {"answer": "paused", "queues": await set_all_paused(call.source, paused=True)}


async def _resume_all(call: WriteCall) -> Mapping[str, Any]:
    return {"answer": "resumed", "queues": await set_all_paused(call.source, paused=False)}


async def _configure(call: WriteCall) -> Mapping[str, Any]:
    changes: dict[str, Any] = {
        name: parse_rate(name, value) if name in ("rate", "key_rate") and isinstance(value, str) else value
        for name, value in call.fields.items()
    }
    await call.queue.configure(**changes)
    return {"answer": "configured"}


async def _enqueue(call: WriteCall) -> Mapping[str, Any]:
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


async def _amend(call: WriteCall) -> Mapping[str, Any]:
    if not call.fields:
        raise Refused(f"the body has no field; pass one of {', '.join(sorted(AMENDED))}")
    return {"answer": await call.queue.amend(call.id, **call.arguments())}


async def _cancel(call: WriteCall) -> Mapping[str, Any]:
    running = call.fields.get("running", False)
    if not isinstance(running, bool):
        raise Refused(f"running is {running!r:.60}; pass true or false", field="running")
    return {"answer": await call.queue.cancel(call.id, running=running)}


async def _retry(call: WriteCall) -> Mapping[str, Any]:
    return {"answer": await call.queue.retry_failed(call.id)}


async def _forget(call: WriteCall) -> Mapping[str, Any]:
    return {"answer": "forgotten" if await call.queue.forget(call.id) else "not_found"}


async def _cancel_flow(call: WriteCall) -> Mapping[str, Any]:
    [slot] = await (await call.source.storage()).get(FLOWS, [call.id])
    kind = StoredBatch if is_batch(flow_attributes(slot)) else StoredFlow
    return {"answer": await kind(call.source.flow_context, call.id).cancel()}


async def _retry_flow(call: WriteCall) -> Mapping[str, Any]:
    return {"answer": await StoredFlow(call.source.flow_context, call.id).retry_failed()}


ACTIONS: Final[Mapping[str, ApiWrite]] = {
    "enqueue": ApiWrite(_enqueue, JOB_FIELDS | {"data", "arguments"}),
    "amend": ApiWrite(_amend, AMENDED),
    "cancel": ApiWrite(_cancel, frozenset({"running"})),
    "retry": ApiWrite(_retry),
    "forget": ApiWrite(_forget),
    "pause": ApiWrite(_pause),
    "resume": ApiWrite(_resume),
    "pause_all": ApiWrite(_pause_all),
    "resume_all": ApiWrite(_resume_all),
    "configure": ApiWrite(
        _configure,
        frozenset(
            {
                "max_active",
                "per_key",
                "rate",
                "key_rate",
                "max_waiting",
                "when_full",
                "retention",
                "log_level",
            }
        ),
    ),
    "cancel_flow": ApiWrite(_cancel_flow),
    "retry_flow": ApiWrite(_retry_flow),
}


async def write(source: Source, name: str, params: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    """Do the write `name`, and return its answer. Raises Refused before anything is written."""
    action = ACTIONS[name]
    fields = _fields(body)
    for field in fields:
        if field not in action.fields:
            known = ", ".join(sorted(action.fields)) or "none"
            raise Refused(f"unknown field {field!r:.60}; {name} takes: {known}", field=field)
    return await action.run(WriteCall(source, params.get("queue", ""), params.get("id", ""), fields))


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


PATH: Final = "/api/{name}"


@define(eq=False)
class ApiRoutes:
    """The handlers of the JSON API. `changed` is called after each write, so that pages are read again."""

    pages: Pages
    changed: Callable[[], None]

    def all(self) -> list[BaseRoute]:
        return [Route(PATH, self.page), Route(PATH, self.write, methods=["POST"])]

    async def page(self, request: Request) -> Response:
        """Answer with a page."""
        return await page_response(self.pages, request.path_params["name"], dict(request.query_params))

    async def write(self, request: Request) -> Response:
        """Do one write, and answer with its result."""
        name, params = request.path_params["name"], dict(request.query_params)
        if name not in ACTIONS:
            known = ", ".join(ACTIONS)
            return error_response(404, "NotFound", f"there is no action {name!r}; known actions: {known}")
        if not is_json(request.headers):
            return error_response(415, "Unsupported", "send the Content-Type application/json")
        try:
            answer = await write(self.pages.source, name, params, await read_body(request))
        except ForbiddenError as error:
            return error_response(413, "TooLarge", str(error))
        except DibsError as error:
            return failure_response(error)
        finally:
            self.changed()
        subject = f"job {params['id']!r}" if "id" in params else "the queue"
        log_write(name, params.get("queue", ""), subject, answer["answer"])
        return json_response(answer)
