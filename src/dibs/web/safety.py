"""The safety of the dashboard: who may read and write, tokens against forged requests, and headers.

Each request passes `Guard` first. A write of a form then needs three things: the access "write", an Origin of
the same host, and the token of the form, which must equal the token in the cookie. A write of the JSON API
needs the access "write" and a body of JSON. It comes from a page of the same host, or from a program, which
sends no Origin.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from hmac import compare_digest
from secrets import token_urlsafe
from typing import Any, Final, Literal, get_args
from urllib.parse import parse_qsl, urlencode, urlsplit

from attrs import define, field, frozen
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dibs.storage.read_limits import limited_reads
from dibs.web.api.answers import error_response
from dibs.web.reading.shared import READ_TIMEOUT

Access = Literal["none", "read", "write"]
#: A function that returns the access of a request. It may be async.
Allow = Callable[[Request], Access | Awaitable[Access]]

CSRF_COOKIE: Final = "dibs_csrf"
CSRF_FIELD: Final = "csrf"
#: Most bytes of the body of a write: a payload of 1 MiB, each byte escaped.
MAX_BODY: Final = 4 * 1024 * 1024
#: Most fields of a form.
MAX_FIELDS: Final = 2_000
#: Key of the access in the scope of a request.
ACCESS_KEY: Final = "dibs.web.access"
CSRF_KEY: Final = "dibs.web.csrf"

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
    allow: Allow | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        scope[ACCESS_KEY] = access = await self._access(request)
        known = request.cookies.get(CSRF_COOKIE, "")
        scope[CSRF_KEY] = token = known if 20 <= len(known) <= 100 else token_urlsafe(24)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", NO_STORE)
                if token != known and access != "none":
                    headers.append("Set-Cookie", _cookie(CSRF_COOKIE, token, request))
            await send(message)

        answer = self._refuse(request, access)
        with limited_reads(READ_TIMEOUT):
            await (answer or self.app)(scope, receive, send_with_headers)

    async def _access(self, request: Request) -> Access:
        """Return the access that `allow` grants; "none" if it fails or returns another value."""
        if self.allow is None:
            return "read"
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
        if access == "none":
            return refusal("You may not see this dashboard.")
        if request.method in ("GET", "HEAD"):
            return None
        if access != "write":
            return refusal("This dashboard is read-only for you. Nothing was changed.")
        if not (is_same_origin(request.headers) or (api and is_from_program(request.headers))):
            return refusal("The request came from another site, or has no Origin. Nothing was changed.")
        return None


def _text_refusal(message: str) -> Response:
    return PlainTextResponse(f"{message}\n", 403)


def _json_refusal(message: str) -> Response:
    return error_response(403, "Forbidden", message)


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


def csrf_of(request: Request) -> str:
    """Return the token for the forms of this viewer."""
    token: str = request.scope[CSRF_KEY]
    return token


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
    """Return the fields of a form whose token equals that of the cookie. Raises ForbiddenError."""
    body = await read_body(request)
    try:
        pairs = parse_qsl(
            body.decode("ascii"), keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError:
        raise ForbiddenError("The form cannot be read. Nothing was changed.") from None
    form = Form(tuple(pairs))
    cookie = request.cookies.get(CSRF_COOKIE, "")
    if not cookie or not compare_digest(cookie.encode(), form.get(CSRF_FIELD).encode()):
        raise ForbiddenError("The form is out of date. Nothing was changed: reload the page and repeat.")
    return form


def _cookie(name: str, value: str, request: Request) -> str:
    path = request.scope.get("root_path", "") or "/"
    secure = "; Secure" if request.url.scheme == "https" else ""
    return f"{name}={value}; Path={path}; HttpOnly; SameSite=Lax{secure}"


@define(eq=False)
class TokenGate:
    """ASGI middleware of `dibs web`: it checks the Host of each request, and asks for a token once.

    The Host stops pages of other sites whose name leads to this machine (DNS rebinding).
    """

    app: ASGIApp
    #: The token, or "" if none is needed.
    token: str = field(repr=False)
    #: Names of hosts without ports that may stand in a URL of the dashboard; None for any.
    hosts: frozenset[str] | None = None
    #: Name of the cookie. It has the port, because browsers share cookies between ports.
    cookie: str = "dibs_token"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = self._answer(request)
        await (answer or self.app)(scope, receive, send)

    def _answer(self, request: Request) -> Response | None:
        host = _host_name(request.headers.get("host", ""))
        if self.hosts is not None and host not in self.hosts:
            return PlainTextResponse("This host name is not that of the dashboard.\n", 421, HEADERS)
        if not self.token or _is_equal(request.cookies.get(self.cookie, ""), self.token):
            return None
        # For programs, which have no cookie. A browser sends this header for no other site.
        if _is_equal(request.headers.get("authorization", ""), f"Bearer {self.token}"):
            return None
        given = request.query_params.get("token", "")
        if request.method == "GET" and _is_equal(given, self.token):
            return self._log_in(request)
        return PlainTextResponse(
            "Open the URL that `dibs web` has printed: it ends with ?token= and the token.\n", 401, HEADERS
        )

    def _log_in(self, request: Request) -> Response:
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        query = f"?{urlencode(rest)}" if rest else ""
        answer = RedirectResponse(f"{request.url.path}{query}", 303, HEADERS)
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="lax")
        return answer


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_equal(given: str, token: str) -> bool:
    return compare_digest(given.encode("utf-8", "replace"), token.encode())
