"""The pages as JSON for programs: the same readings as those of the HTML, after the redaction hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import msgspec
from starlette.responses import Response

from dibs.errors import BatchRefused, DibsError, Refused
from dibs.web.pages import Pages

#: Parts of a page that only its drawing and its forms need.
_LEFT_OUT: Final = frozenset(("desk", "phone", "form", "editable"))


async def answer(pages: Pages, name: str, params: Mapping[str, str]) -> Response:
    """Return a page as JSON, or {"error": {"type": ..., "message": ...}}."""
    if name not in pages.kinds:
        return _error(404, "NotFound", f"there is no page {name!r}; known pages: {', '.join(pages.kinds)}")
    try:
        model = await pages.read(pages.key(name, params))
    except DibsError as error:
        status = 400 if isinstance(error, (Refused, BatchRefused)) else 503
        return _error(status, type(error).__name__, str(error))
    fields = {
        field.name: getattr(model, field.name)
        for field in attrs.fields(type(model))
        if field.name not in _LEFT_OUT
    }
    return _json(fields)


def _error(status: int, type: str, message: str) -> Response:
    return _json({"error": {"type": type, "message": message}}, status)


def _json(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
