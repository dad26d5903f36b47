"""What is refused, and in which words, before anything is written (contract 4, Limits).

Every storage calls these at its door, so the verdict is the same everywhere. Sizes are bytes of UTF-8.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, Self, get_args

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from dibs.errors import BatchRefused, Refused
from dibs.model.job import FAIL_SUFFIX, NO_ATTRIBUTES, Data, Error, NewJob
from dibs.model.requests import DEFAULT_UPDATE, OnConflict, Reject, Request, RunAtRule, Then, Update
from dibs.model.terms import LONGEST, SAFE_INTEGER, check_overrides, check_retention, check_whole

KIB: Final = 1024
MIB: Final = 1024 * KIB
#: More causes of an error than this are no story but a loop, and would break an encoder's recursion.
MOST_CAUSES: Final = 16
_RULES: Final = get_args(RunAtRule)
CUT_MARK: Final = "\n[... cut by dibs ...]\n"


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of one storage. What stands here is the contract's; a storage may be opened with others."""

    payload: int = MIB
    attributes: int = 64 * KIB
    result: int = MIB
    progress: int = MIB
    error: int = 16 * KIB
    id: int = 512
    queue: int = 500
    request_key: int = 128
    batch: int = 1000
    depth: int = 64
    priority: int = 1000


LIMITS: Final = Limits()


class Checked(tuple[Request, ...]):  # noqa: SLOT001 - below a tuple, slots have to be empty
    """Requests of which none breaks `within`: a door that holds to the same need not look at them again.

    Only who has looked may make one.
    """

    within: Limits
    #: Whether each says nothing but id and payload, as most do.
    plain: bool

    @classmethod
    def found(cls, requests: Iterable[Request], within: Limits, *, plain: bool) -> Self:
        """Return requests that were found good, and plain or not, by check_request."""
        checked = cls(requests)
        checked.within, checked.plain = within, plain
        return checked


def check_batch(requests: Sequence[Request], limits: Limits = LIMITS) -> Checked:
    """Refuse the batch if any item breaks a limit, naming each such item; return it as what was checked."""
    if len(requests) > limits.batch:
        raise Refused(
            f"{len(requests)} requests in one batch; the limit is {limits.batch}, send several batches",
            field="requests",
        )
    if isinstance(requests, Checked) and requests.within == limits:
        return requests
    refused, plain = [], True
    for index, request in enumerate(requests):
        try:
            plain = check_request(request, limits) and plain
        except Refused as error:
            error.index = index
            refused.append(error)
    if refused:
        raise BatchRefused(f"{len(refused)} of {len(requests)} requests are refused, none was sent", refused)
    return Checked.found(requests, limits, plain=plain)


def check_request(request: Request, limits: Limits = LIMITS) -> bool:
    """Refuse a request that breaks a limit; return whether it says nothing but id and payload."""
    if _is_plain(request, limits):
        return True
    check_new(request.job, limits)
    check_conflict(request.on_conflict)
    if request.request_key is not None:
        check_text("request_key", request.request_key, limits.request_key)
    return False


def _is_plain(request: Request, limits: Limits) -> bool:
    """Tell, in a third of the time, that there is nothing to refuse; False says nothing."""
    job = request.job
    id, data = job.id, job.data
    payload = data.payload
    return (
        type(id) is str
        and type(payload) is bytes
        and 0 < len(id) <= limits.id
        and id.isascii()
        and "\0" not in id
        and len(payload) <= limits.payload
        and (data.attributes is NO_ATTRIBUTES or data.attributes == {})
        and type(data.priority) is int
        and data.priority == 0
        and request.on_conflict is DEFAULT_UPDATE
        and job.run_at is None
        and job.delay is None
        and data.overrides is None
        and data.retention is None
        and request.request_key is None
        and request.want_outcome is False
    )


def check_conflict(how: OnConflict) -> None:
    """Refuse a rule for known ids that nobody knows."""
    if how is DEFAULT_UPDATE:
        return
    if isinstance(how, Update):
        if how.run_at not in _RULES:
            raise Refused(
                f"on_conflict.run_at must be one of {', '.join(_RULES)}", field="on_conflict.run_at"
            )
        flags = {"data": how.data, "reset_counts": how.data if how.reset_counts is None else how.reset_counts}
    elif isinstance(how, Reject):
        flags = {"failed": how.failed}
    else:
        raise Refused(
            f"on_conflict must be Update(...) or Reject(...), not {type(how).__name__}", field="on_conflict"
        )
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise Refused(f"on_conflict.{name} must be True or False", field=f"on_conflict.{name}")


def check_new(job: NewJob, limits: Limits = LIMITS) -> None:
    """Refuse a job that breaks a limit."""
    check_text("id", job.id, limits.id)
    check_data(job.data, limits)
    if job.run_at is None and job.delay is None:
        return
    if job.run_at is not None and job.delay is not None:
        raise Refused("run_at and delay exclude each other: give one", field="run_at")
    check_number("run_at", job.run_at, 0, SAFE_INTEGER)
    check_number("delay", job.delay, 0, LONGEST)


def check_data(data: Data, limits: Limits = LIMITS) -> None:
    """Refuse payload, attributes, priority or terms that break a limit."""
    check_bytes("payload", data.payload, limits.payload)
    if data.priority != 0 or type(data.priority) is not int:
        check_whole("priority", data.priority, -limits.priority, limits.priority)
    if data.attributes is not NO_ATTRIBUTES:
        check_attributes(data.attributes, limits)
    if data.overrides is not None:
        check_overrides(data.overrides)
    if data.retention is not None:
        check_retention("retention", data.retention)


def check_then(then: Iterable[Then], limits: Limits = LIMITS) -> None:
    """Refuse a follow-up that breaks a limit or names a queue nobody may enqueue to."""
    for item in then:
        check_target(item.queue, limits)
        check_new(item.job, limits)
        check_conflict(item.on_conflict)


def check_target(queue: str, limits: Limits = LIMITS) -> None:
    """Refuse a queue name that may not be enqueued to."""
    check_queue(queue, limits)
    if queue.endswith(FAIL_SUFFIX):
        raise Refused(
            f"queue {queue!r}: names ending in {FAIL_SUFFIX!r} belong to failure handlers; "
            "only dibs enqueues there",
            field="queue",
        )


def check_queue(queue: str, limits: Limits = LIMITS) -> None:
    """Refuse what cannot be the name of a queue; a fail queue may be longer by its ending."""
    if isinstance(queue, str) and queue.endswith(FAIL_SUFFIX):
        check_text("queue", queue, limits.queue + len(FAIL_SUFFIX))
    else:
        check_text("queue", queue, limits.queue)


def check_text(field: str, text: str, limit: int) -> None:
    """Refuse text that is empty, too long, not UTF-8, or holds NUL."""
    if not isinstance(text, str):
        raise Refused(f"{field} must be text, not {type(text).__name__}", field=field)
    size = len(text) if text.isascii() else len(_utf8(field, text))
    if not 0 < size <= limit:
        raise Refused(f"{field} has {size} bytes; it must have 1 to {limit}", field=field)
    if "\0" in text:
        raise Refused(f"{field} holds a NUL character; leave it out", field=field)


def _utf8(field: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise Refused(f"{field} holds a lone surrogate, which UTF-8 cannot say", field=field) from None


def check_bytes(field: str, value: bytes, limit: int) -> None:
    """Refuse bytes that are too many."""
    if not isinstance(value, bytes):
        raise Refused(f"{field} must be bytes, not {type(value).__name__}", field=field)
    if len(value) > limit:
        raise Refused(
            f"{field} has {len(value)} bytes; the limit is {limit}: store it elsewhere and send its address",
            field=field,
        )


def check_number(field: str, value: object, low: int, high: int) -> None:
    """Refuse what is not a whole number within low..high; None passes."""
    if value is not None:
        check_whole(field, value, low, high)


def check_attributes(attributes: Mapping[str, bytes], limits: Limits = LIMITS) -> None:
    """Refuse attributes that are too large or hold what is no JSON every storage can keep."""
    if not isinstance(attributes, Mapping):
        raise Refused(
            f"attributes must map names to encoded JSON, not be {type(attributes).__name__}",
            field="attributes",
        )
    size = 0
    for name, value in attributes.items():
        field = f"attributes[{name!r:.60}]"
        check_text(field, name, limits.attributes)
        check_bytes(field, value, limits.attributes)
        size += len(name.encode()) + len(value)
    if size > limits.attributes:
        raise Refused(
            f"attributes have {size} bytes; the limit is {limits.attributes}: use the payload instead",
            field="attributes",
        )
    for name, value in attributes.items():
        check_json(f"attributes[{name!r:.60}]", value, limits.depth)


def check_json(field: str, encoded: bytes, depth: int = LIMITS.depth) -> None:
    """Refuse bytes that are no JSON, nested too deep, or with text or numbers some storage can't keep."""
    try:
        value = msgspec.json.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(f"{field} is no JSON: {error}", field=field) from None
    check_value(field, value, depth, integers=True)


def check_value(field: str, value: Any, depth: int = LIMITS.depth, *, integers: bool = False) -> None:
    """Refuse a JSON value with NaN, infinity, NUL, lone surrogates, too deep, or beyond 2**53."""
    if isinstance(value, (dict, list, tuple)):
        _check_nested(field, value, depth, integers=integers)
    else:
        check_scalar(field, value, integers=integers)


def check_scalar(field: str, value: object, *, integers: bool = False) -> None:
    """Refuse text or a number that JSON cannot say; what holds other values passes."""
    if isinstance(value, str):
        if "\0" in value:
            raise Refused(f"{field} holds a NUL character; leave it out", field=field)
        if not value.isascii():
            _utf8(field, value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Refused(f"{field} holds {value}, which JSON cannot say", field=field)
    elif isinstance(value, int) and integers and abs(value) > SAFE_INTEGER:
        raise Refused(f"{field} holds an integer beyond 2**53; send it as text", field=field)


def _check_nested(field: str, value: Any, depth: int, *, integers: bool) -> None:
    """Go down level by level: recursion would end before a depth that a storage was given."""
    level, left = [value], depth
    while level:
        if left == 0:
            raise Refused(f"{field} is nested deeper than {depth}; flatten it", field=field)
        inside = list(chain.from_iterable(map(_members, level)))
        level, left = [item for item in inside if isinstance(item, dict | list | tuple)], left - 1
        for item in inside:
            check_scalar(field, item, integers=integers)


def _members(value: Any) -> Iterable[Any]:
    return chain(value, value.values()) if isinstance(value, dict) else value


def cut_error(error: Error, limit: int = LIMITS.error) -> Error:
    """Return the error with its texts cut to `limit` bytes in all, the cut marked; the cause goes first."""
    if _error_size(error) <= limit:
        return error
    kind = _cut(error.type, 512)
    message = _cut(error.message, limit // 2)
    room = limit - len(kind.encode()) - len(message.encode())
    return Error(type=kind, message=message, traceback=_cut(error.traceback, room))


def _error_size(error: Error | None) -> int:
    size = 0
    while error is not None:
        size += len(error.type.encode()) + len(error.message.encode()) + len(error.traceback.encode())
        error = error.cause
    return size


def _cut(text: str, limit: int) -> str:
    """Keep both ends: a traceback says where it began and, at its end, what happened."""
    raw = text.encode(errors="replace")
    if len(raw) <= limit:
        return text
    half = max(0, limit - len(CUT_MARK)) // 2
    head = raw[:half].decode(errors="ignore")
    tail = raw[len(raw) - half :].decode(errors="ignore")
    return (head + CUT_MARK + tail).encode()[:limit].decode(errors="ignore")


def checked_error(error: Error, limits: Limits = LIMITS) -> Error:
    """Return the error as it may be stored: cut, and free of what UTF-8 or a text column cannot keep."""
    return cut_error(_plain(error, MOST_CAUSES), limits.error)


def _plain(error: Error, causes: int) -> Error:
    texts = {
        name: getattr(error, name).replace("\0", "\\0").encode(errors="backslashreplace").decode()
        for name in ("type", "message", "traceback")
    }
    cause = _plain(error.cause, causes - 1) if error.cause is not None and causes > 0 else None
    return replace(error, **texts, cause=cause)
