"""The routes of the JSON API, below /api/."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from attrs import define
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from dibs.errors import DibsError
from dibs.web.api.answers import error_response, failure_response, json_response
from dibs.web.api.pages import page_response
from dibs.web.api.writes import ACTIONS, write
from dibs.web.pages import Pages
from dibs.web.safety import ForbiddenError, is_json, read_body
from dibs.web.writes import log_write

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
