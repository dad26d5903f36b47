"""The pages as JSON for programs: the same readings as those of the HTML, after the redaction hook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import attrs
from starlette.responses import Response

from dibs.errors import DibsError
from dibs.web.api.answers import error_response, failure_response, json_response
from dibs.web.pages import Pages

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
