"""The answers of the JSON API: a value, or an error with its type and message."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from dibs.errors import BatchRefused, DibsError, Refused


def json_response(value: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def error_response(status: int, type: str, message: str) -> Response:
    """Return {"error": {"type": ..., "message": ...}}."""
    return json_response({"error": {"type": type, "message": message}}, status)


def failure_response(error: DibsError) -> Response:
    """Return the error of a call: 400 if the call is at fault, 503 if the storage is."""
    status = 400 if isinstance(error, (Refused, BatchRefused)) else 503
    return error_response(status, type(error).__name__, str(error))
