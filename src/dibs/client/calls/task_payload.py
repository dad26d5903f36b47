"""The payload of a task's job: its form, and the error of a payload that does not fit."""

from __future__ import annotations

from typing import Any

import msgspec

from dibs.client.options.serde import Serde
from dibs.errors import PermanentError

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


class PayloadMismatch(PermanentError):
    """The payload of a job does not fit the handler of this process, so the handler was not called.

    Another worker may have the code that fits, so a worker tries the job again later.
    """


class TaskPayload(msgspec.Struct, forbid_unknown_fields=True):
    """The payload of a task's job: the arguments of one call, in the order of the call and by name."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class EmptyKwargs(msgspec.Struct, forbid_unknown_fields=True):
    """Type of empty keyword arguments. Decoding a payload with keyword arguments to it raises an error."""


def decode_task_payload(serde: Serde, payload: bytes) -> tuple[Args, Kwargs]:
    """Return the arguments of a task's payload without conversion to type hints. Raises PayloadMismatch."""
    try:
        written = serde.decode(payload, TaskPayload)
    except ValueError as error:
        raise PayloadMismatch(
            f'the payload is not of the form {{"args": [...], "kwargs": {{...}}}} of a task: {error}'
        ) from error
    return tuple(written.args), written.kwargs
