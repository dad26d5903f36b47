"""The JSON API of the dashboard, below /api/: each page for programs, and each write as a POST."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import msgspec
from attrs import define
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dibs.errors import DibsError, Refused
from dibs.web.calls import AMENDED, CALLS, CONFIGURED, JOB_FIELDS, WriteCall
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
from dibs.web.writes import log_write

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


#: Name of a write -> the fields that its body may have.
ACTIONS: Final[Mapping[str, frozenset[str]]] = {
    "enqueue": JOB_FIELDS | {"data", "arguments"},
    "amend": AMENDED,
    "signal": frozenset({"name", "value", "request_key"}),
    "cancel": frozenset({"running"}),
    "retry": frozenset(),
    "forget": frozenset(),
    "pause": frozenset(),
    "resume": frozenset(),
    "pause_all": frozenset(),
    "resume_all": frozenset(),
    "configure": CONFIGURED,
    "cancel_flow": frozenset(),
    "retry_flow": frozenset(),
}


async def write(source: Source, name: str, params: Mapping[str, str], body: bytes) -> Mapping[str, Any]:
    """Do the write `name`, and return its answer. Raises Refused before anything is written."""
    fields = _fields(body)
    for field in fields:
        if field not in ACTIONS[name]:
            known = ", ".join(sorted(ACTIONS[name])) or "none"
            raise Refused(f"unknown field {field!r:.60}; {name} takes: {known}", field=field)
    return await CALLS[name](WriteCall(source, params.get("queue", ""), params.get("id", ""), fields))


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


PATH: Final = "/api/{name}"


@define(eq=False)
class ApiRoutes:
    """The handlers of the JSON API. `changed` is called after each write, so that pages are read again."""

    pages: Pages
    changed: Callable[[], None]

    def all(self) -> list[BaseRoute]:
        return [Route(PATH, self.page), Route(PATH, self.write, methods=["POST"])]

    async def page(self, request: Request) -> Response:
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
