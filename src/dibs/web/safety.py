"""The safety of the dashboard: who may read and write, and the headers of each response.

Each request passes `Guard` first. A write of a form needs the access "write", and an Origin of the same host
and port. A write of the JSON API needs the access "write" and a body of JSON. It comes from a page of the
same host, or from a program, which sends no Origin.

There are no tokens against forged requests. Each browser has sent the Origin with each POST since 2020, and
`is_same_origin` refuses a write without it. A token in a cookie would add nothing: a site of the same host on
another port, or of a name below the same domain, can set that cookie.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qsl, urlsplit

import msgspec
from attrs import define, frozen
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dibs.errors import BatchRefused, DibsError, Refused
from dibs.host_names import is_allowed_host
from dibs.storage.read_limits import limited_reads
from dibs.web.reading.shared import READ_TIMEOUT

Access = Literal["none", "read", "write"]
#: A function that returns the access of a request. It may be async.
Allow = Callable[[Request], Access | Awaitable[Access]]

#: Most bytes of the body of a write: a payload of 1 MiB, each byte escaped.
MAX_BODY: Final = 4 * 1024 * 1024
#: Most fields of a form.
MAX_FIELDS: Final = 2_000
#: Keys of the access and of the Guard in the scope of a request.
ACCESS_KEY: Final = "dibs.web.access"
GUARD_KEY: Final = "dibs.web.guard"

HEADERS: Final = {
    # Scripts and styles come from files of this server only.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # "no-referrer" would make browsers send the Origin "null" with a form.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
NO_STORE: Final = "no-store"
log = logging.getLogger("dibs.web")


class ForbiddenError(Exception):
    """A write was refused before anything was written; the text says how to repeat it."""


@define(eq=False)
class Guard:
    """ASGI middleware that decides the access of each request, and adds the headers to each response."""

    app: ASGIApp
    allow: Allow
    #: Names of hosts that a request may have, besides addresses and localhost (dibs.host_names).
    allowed_hosts: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        scope[GUARD_KEY] = self
        scope[ACCESS_KEY] = access = await self.access(request)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", NO_STORE)
            await send(message)

        answer = self._refuse(request, access)
        with limited_reads(READ_TIMEOUT):
            await (answer or self.app)(scope, receive, send_with_headers)

    async def access(self, request: Request) -> Access:
        """Return the access that `allow` grants; "none" if it fails or returns another value."""
        try:
            access: Any = self.allow(request)
            if inspect.isawaitable(access):
                access = await access
        except Exception:
            log.exception("allow= failed for %s, so the request is refused", request.url.path)
            return "none"
        if access not in get_args(Access):
            log.error("allow= returned %r; it must return 'none', 'read' or 'write'", access)
            return "none"
        found: Access = access
        return found

    def _refuse(self, request: Request, access: Access) -> Response | None:
        api = is_api(request)
        refusal = _json_refusal if api else _text_refusal
        host = request.headers.get("host", "")
        if not is_allowed_host(host, self.allowed_hosts):
            return refusal(
                f"The dashboard does not answer to the host name {host!r:.300}. If it is right, pass it to "
                "dibs_web in allowed_hosts=, or to `dibs web` as --allowed-host.",
                421,
            )
        if access == "none":
            return refusal("You may not see this dashboard.")
        if request.method in ("GET", "HEAD"):
            return None
        if access != "write":
            return refusal("This dashboard is read-only for you. Nothing was changed.")
        if not (is_same_origin(request.headers) or (api and is_from_program(request.headers))):
            return refusal("The request came from another site, or has no Origin. Nothing was changed.")
        return None


def _text_refusal(message: str, status: int = 403) -> Response:
    return PlainTextResponse(f"{message}\n", status)


def _json_refusal(message: str, status: int = 403) -> Response:
    return error_response(status, "Forbidden", message)


def is_api(request: Request) -> bool:
    """Return whether the path of a request is below /api/ of the dashboard."""
    root = request.scope.get("root_path", "").rstrip("/")
    path: str = request.scope["path"]
    return path.removeprefix(root).startswith("/api/")


def is_json(headers: Mapping[str, str]) -> bool:
    """Return whether the body of a request is announced as JSON."""
    return headers.get("content-type", "").partition(";")[0].strip().lower() == "application/json"


def is_from_program(headers: Mapping[str, str]) -> bool:
    """Return whether no browser sent a write: it is JSON, and has none of the headers that a browser adds.

    A browser adds the Origin to each POST, and asks the server first before it sends JSON to another site.
    """
    return is_json(headers) and "origin" not in headers and "sec-fetch-site" not in headers


def is_same_origin(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sent the request from a page of the same host and port.

    The scheme is not compared, because a proxy may end TLS.
    """
    if headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return False
    try:
        origin = urlsplit(headers.get("origin", ""))
    except ValueError:
        return False
    return bool(origin.netloc) and origin.netloc == headers.get("host")


def access_of(request: Request) -> Access:
    """Return the access that Guard has decided."""
    access: Access = request.scope[ACCESS_KEY]
    return access


async def has_kept_access(request: Request) -> bool:
    """Return whether `allow` grants the access of an open request again, as when it began."""
    guard: Guard = request.scope[GUARD_KEY]
    return await guard.access(request) == access_of(request)


@frozen
class Form:
    """The fields of a write. A name may have several values."""

    pairs: tuple[tuple[str, str], ...]

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]


async def read_body(request: Request) -> bytes:
    """Return the body of a write. Raises ForbiddenError for more than MAX_BODY bytes."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise ForbiddenError(f"The body has more than {MAX_BODY:,} bytes. Nothing was changed.")
    return bytes(body)


async def read_form_body(request: Request) -> Form:
    """Return the fields of a form. Raises ForbiddenError for a body that is too long, or that is no form."""
    body = await read_body(request)
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError:
        raise ForbiddenError("The form cannot be read. Nothing was changed.") from None
    return Form(tuple(pairs))


# -- answers of the JSON API ---------------------------------------------------------------------------


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_response(status: int, type: str, message: str) -> Response:
    """Return {"error": {"type": ..., "message": ...}}."""
    return json_response({"error": {"type": type, "message": message}}, status)


def failure_response(error: DibsError) -> Response:
    """Return the error of a call: 400 if the call is at fault, 503 if the storage is."""
    status = 400 if isinstance(error, (Refused, BatchRefused)) else 503
    return error_response(status, type(error).__name__, str(error))
