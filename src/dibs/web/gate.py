"""The gate of `dibs web`: it asks a browser once for the token of the printed address.

The secret that a browser keeps is a cookie, and browsers share cookies between all ports of a host: a program
on another port of this machine would receive it, whatever its name or prefix. So the cookie has a path that
nobody can guess, and the dashboard lies below it. A browser sends the cookie with no request outside of this
path. The path alone opens nothing, so that a shared address is harmless. The cookie is not the token.
"""

from __future__ import annotations

from hashlib import blake2b
from hmac import compare_digest
from typing import Final
from urllib.parse import urlencode

from attrs import define, field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dibs.web.safety import HEADERS

COOKIE: Final = "dibs_session"


@define(eq=False)
class TokenGate:
    """ASGI middleware that closes a dashboard to requests without the token or its cookie."""

    app: ASGIApp
    token: str = field(repr=False)
    #: The path of the dashboard for browsers, and the value of the cookie. Both come from the token, so that
    #: they outlast a new start of a server with the same token.
    folder: str = field(init=False, repr=False)
    session: str = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self.folder = f"/{self._derive('folder')}"
        self.session = self._derive("session")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        root = self.folder if scope["path"].startswith(f"{self.folder}/") else ""
        if self._is_known(request, root):
            await self.app({**scope, "root_path": root}, receive, send)
        else:
            await self._refuse(request, root)(scope, receive, send)

    def _is_known(self, request: Request, root: str) -> bool:
        # For programs, which have no cookie. A browser sends this header for no other site.
        if _is_equal(request.headers.get("authorization", ""), f"Bearer {self.token}"):
            return True
        return bool(root) and _is_equal(request.cookies.get(COOKIE, ""), self.session)

    def _refuse(self, request: Request, root: str) -> Response:
        """Return the redirect into the dashboard for a GET with the token, else the refusal."""
        if request.method == "GET" and _is_equal(request.query_params.get("token", ""), self.token):
            return self._log_in(request, root)
        return PlainTextResponse(
            "Open the URL that `dibs web` has printed: it ends with ?token= and the token.\n", 401, HEADERS
        )

    def _log_in(self, request: Request, root: str) -> Response:
        rest = [(name, value) for name, value in request.query_params.multi_items() if name != "token"]
        query = f"?{urlencode(rest)}" if rest else ""
        path = request.scope["path"].removeprefix(root)
        answer = RedirectResponse(f"{self.folder}{path}{query}", 303, HEADERS)
        answer.set_cookie(
            COOKIE,
            self.session,
            path=f"{self.folder}/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="lax",
        )
        return answer

    def _derive(self, purpose: str) -> str:
        return blake2b(f"dibs web {purpose} {self.token}".encode(), digest_size=16).hexdigest()


def _is_equal(given: str, token: str) -> bool:
    return compare_digest(given.encode("utf-8", "replace"), token.encode())
