"""Errors of a storage as errors of a tool, whose message the language model reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mcp.server.mcpserver.exceptions import ToolError

from dibs.errors import DibsError


@contextmanager
def tool_errors() -> Iterator[None]:
    """Raise ToolError with the message of a DibsError. Other errors reach the model without their text."""
    try:
        yield
    except DibsError as error:
        raise ToolError(f"{type(error).__name__}: {error}") from error
