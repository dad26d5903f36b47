"""The settings of one job that no storage reads: the fields of Overrides, each declared once.

A storage keeps all of them as one part, packed by `pack_overrides`, so that it carries a new field unchanged.
The kind of a field says how to check its values and how to show them. The checks of requests, the settings of
an enqueue, `Status`, the JSON of the command line, the dashboard and the values that the conformance kit
stores follow from the declaration.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import NoneType
from typing import Annotated, Any, Final, Literal, cast, get_args, get_type_hints

import msgspec
from attrs import frozen
from msgspec import UNSET, Struct, UnsetType

from dibs.errors import Refused
from dibs.model.check_values import check_duration, check_time, check_whole_number
from dibs.model.limits import SAFE_INTEGER
from dibs.model.plain_values import to_plain
from dibs.model.retry import Backoff, check_backoff


@frozen(eq=False)
class Kind:
    """A kind of value of an override."""

    #: Called with the name of the field and its value. Raises Refused for a bad value.
    check: Callable[[str, Any], None]
    #: "ms" for a duration, "time" for ms since the epoch, "" for a value that is shown as it is.
    unit: Literal["ms", "time", ""] = ""


DURATION: Final = Kind(partial(check_duration, low=1), "ms")
TIME: Final = Kind(check_time, "time")
COUNT: Final = Kind(partial(check_whole_number, low=0, high=SAFE_INTEGER))
BACKOFF: Final = Kind(check_backoff)


class Overrides(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """The settings that one job has for itself. No storage decides by one of them; an amend replaces `lease`.

    UNSET is a setting that the job does not make: the handler decides. None removes a limit of the handler.
    """

    #: The longest time of one run, in ms.
    timeout: Annotated[int | UnsetType | None, DURATION] = UNSET
    #: The most retries after errors.
    max_retries: Annotated[int | UnsetType | None, COUNT] = UNSET
    #: The most retries after timeouts.
    max_timeouts: Annotated[int | UnsetType | None, COUNT] = UNSET
    #: The most runs that may end with the death of their process or with an expired lease.
    max_stalls: Annotated[int | UnsetType | None, COUNT] = UNSET
    #: The rule for the delay before each retry.
    backoff: Annotated[Backoff | UnsetType, BACKOFF] = UNSET
    #: The least length of the lease under which `receive` holds the job, in ms.
    lease: Annotated[int | UnsetType, DURATION] = UNSET
    #: The time from which no run may start, in ms since the epoch. A worker that claims the job at this time
    #: or later cancels it. None removes the deadline of the task.
    start_by: Annotated[int | UnsetType | None, TIME] = UNSET


@frozen
class Declaration:
    """The kind of a field of Overrides, and whether the field may be None."""

    kind: Kind
    may_be_none: bool


def _read_declaration(hint: Any) -> Declaration:
    allowed, kind = get_args(hint)
    return Declaration(kind, NoneType in get_args(allowed))


#: The declaration of each field of Overrides, by name.
DECLARATIONS: Final = {
    name: _read_declaration(hint) for name, hint in get_type_hints(Overrides, include_extras=True).items()
}
#: Return the overrides of a job as JSON, as storages keep them.
pack_overrides: Final = cast("Callable[[Overrides], bytes]", msgspec.json.Encoder(enc_hook=to_plain).encode)
#: Return the overrides from their JSON, bytes or text.
unpack_overrides: Final = msgspec.json.Decoder(Overrides).decode


def check_overrides(overrides: Overrides) -> None:
    """Raise Refused for the first bad field. Fields that are not set pass."""
    if not isinstance(overrides, Overrides):
        raise Refused(f"overrides must be Overrides, not {type(overrides).__name__}", field="overrides")
    for name, declared in DECLARATIONS.items():
        value = getattr(overrides, name)
        if value is not UNSET and not (value is None and declared.may_be_none):
            declared.kind.check(name, value)


def readable(overrides: Overrides | None, show_time: Callable[[int], Any]) -> dict[str, Any]:
    """Return the fields that are set by name, with durations in s and times as `show_time` returns them."""
    values = {name: getattr(overrides, name, UNSET) for name in DECLARATIONS}
    return {
        name: value if value is None else _readable(DECLARATIONS[name].kind, value, show_time)
        for name, value in values.items()
        if value is not UNSET
    }


def _readable(kind: Kind, value: Any, show_time: Callable[[int], Any]) -> Any:
    if kind.unit == "ms":
        return value / 1000
    return show_time(value) if kind.unit == "time" else value
