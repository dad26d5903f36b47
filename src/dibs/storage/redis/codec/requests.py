"""Encoding of requests as script arguments, and decoding of script replies as results of dibs.model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from secrets import token_urlsafe
from struct import Struct as Layout
from typing import Any, Final, NamedTuple, cast, get_type_hints

from msgspec import UNSET, convert

from dibs.model.job import FAIL_SUFFIX, Outcome
from dibs.model.plain_values import to_plain
from dibs.model.requests import (
    DEFAULT_UPDATE,
    EnqueueRequest,
    JobPatch,
    OnConflict,
    Reject,
    Settings,
    SettingsPatch,
    StartRate,
    Update,
)
from dibs.model.results import (
    ClaimResult,
    EnqueueResult,
    EnqueueStatus,
    ExportRecord,
    FoundState,
    ReapedJob,
    ReapedKind,
    RenewResult,
)
from dibs.storage.redis.codec import jobs, slots
from dibs.storage.redis.codec.data import (
    decode_retention,
    encode_attributes,
    encode_data,
    encode_retention,
)

#: An argument of a script.
Argument = bytes | str | int

#: The scripts know `wake` as a flag beside the rule `never`.
RULES: Final = {"always": 0, "never": 16, "later": 32, "earlier": 48, "wake": 16}
WAKES: Final = 8
#: The largest payload that is a part of the record of its job, as in payloads.lua.
LARGE: Final = 4096
#: The most bytes of payloads that one command reads, unless one payload has more.
READ_AT_ONCE: Final = 2**22
ENQUEUE_STATUSES: Final[tuple[EnqueueStatus, ...]] = (
    "queued", "updated", "blocked", "duplicate", "completed", "failed", "absent", "full", "dropped",
)  # fmt: skip
FOUND_STATES: Final[tuple[FoundState, ...]] = ("nothing", "waiting", "active", "active+blocked")
SETTINGS: Final = tuple(Settings.__struct_fields__)
_SETTING_TYPES: Final = get_type_hints(Settings)

_REQUEST: Final = Layout(">BBhQB")
_ENQUEUED: Final = Layout(">BBBQQ")
_REFERENCE: Final = Layout(">20sI")


def encode_id(id: str) -> bytes:
    """Return an id as bytes. Text that UTF-8 cannot encode becomes bytes that are the id of no job."""
    return id.encode("utf-8", "surrogatepass")


# -- enqueue -----------------------------------------------------------------------------------------


class EncodedRequests(NamedTuple):
    """The arguments of enqueue.lua, and the large payloads by name: they are sent ahead of the call."""

    #: id, request, id, request, ...
    arguments: list[Argument]
    payloads: dict[str, bytes]


def encode_requests(requests: Iterable[EnqueueRequest]) -> EncodedRequests:
    arguments: list[Argument] = []
    payloads: dict[str, bytes] = {}
    for one in requests:
        reference, payload = b"", one.job.data.payload
        if len(payload) > LARGE:
            name = token_urlsafe(15)
            payloads[name], reference = payload, _REFERENCE.pack(name.encode(), len(payload))
        request = encode_request(
            one.job, one.on_conflict, one.request_key, want_outcome=one.want_outcome, reference=reference
        )
        arguments += (one.job.id, request)
    return EncodedRequests(arguments, payloads)


def encode_request(
    job: Any,
    on_conflict: OnConflict,
    key: str | None,
    *,
    want_outcome: bool = False,
    reference: bytes = b"",
) -> bytes:
    time, at = 4 if want_outcome else 0, 0
    if job.run_at is not None:
        time, at = time | 1, job.run_at
    elif job.delay is not None:
        time, at = time | 2, job.delay
    if isinstance(on_conflict, Update) and on_conflict.run_at == "wake":
        time |= WAKES
    data, raw_key = job.data, b"" if key is None else key.encode()
    mode = DEFAULT_MODE if on_conflict is DEFAULT_UPDATE else _mode_of(on_conflict)
    return _REQUEST.pack(mode, time, data.priority, at, len(raw_key)) + raw_key + encode_data(data, reference)


def _mode_of(on_conflict: OnConflict) -> int:
    if isinstance(on_conflict, Reject):
        return 2 if on_conflict.failed else 1
    flags = (4 if on_conflict.replaces else 0) | (8 if on_conflict.resets else 0)
    flags |= (0 if on_conflict.create else 64) | (128 if on_conflict.supersede else 0)
    return flags | RULES[on_conflict.run_at]


DEFAULT_MODE: Final = _mode_of(DEFAULT_UPDATE)


def decode_enqueued(requests: Sequence[EnqueueRequest], reply: int | list[Any]) -> list[EnqueueResult]:
    if isinstance(reply, int):
        return _new_jobs(reply, len(requests))
    answers, now, outcomes, first, first_ids = reply
    if first:
        return _new_jobs(int(first), len(requests))
    outcomes_left, first_ids_left = iter(outcomes), iter(first_ids)
    results = []
    for request, (status, found, repeated, first, last) in zip(
        requests, _ENQUEUED.iter_unpack(answers), strict=True
    ):
        outcome = None
        if request.want_outcome and not repeated:
            outcome = _decode_outcome(request.job.id, next(outcomes_left), int(now))
        results.append(
            EnqueueResult(
                ENQUEUE_STATUSES[status - 1],
                FOUND_STATES[found - 1],
                first,
                last,
                outcome,
                repeated=bool(repeated),
                id=next(first_ids_left).decode() if repeated else "",
            )
        )
    return results


def _new_jobs(first: int, count: int) -> list[EnqueueResult]:
    if count == 1:
        return [EnqueueResult("queued", "nothing", first, first)]
    return [EnqueueResult("queued", "nothing", n, n) for n in range(first, first + count)]


def _decode_outcome(id: str, raw: bytes | None, now: int) -> Outcome | None:
    try:
        return slots.live_outcome(raw, now)
    except jobs.DECODE_ERRORS:
        raise jobs.UnreadableRecord("outcome", id) from None


def encode_lease(lease: str) -> str:
    """Return a lease as an argument. Text that cannot be a lease becomes a lease that does not exist."""
    return lease if len(lease) == 32 and lease.isascii() else "-" * 32


def work_token(work: str, next_due: str) -> str:
    """Return the token of a queue for claims and for waits for work.

    `work` is the number of the last step after which a claim may find more jobs. It does not change when a
    scheduled job falls due, so the token also has the time of the next scheduled job, `next_due` (ms or "").
    """
    return f"{work}/{next_due}"


def work_changed(since: str, work: str, now: int) -> bool:
    """Return whether a claim may find more jobs than the claim that returned the token `since`."""
    count, _, due = since.partition("/")
    return count != work or (due.isdecimal() and int(due) <= now)


def names_of_payloads(references: bytes) -> Iterator[list[str]]:
    """Return the names of the payloads of a claim, in lists: one command reads the payloads of each."""
    names: list[str] = []
    total = 0
    for name, size in _REFERENCE.iter_unpack(references):
        if names and total + size > READ_AT_ONCE:
            yield names
            names, total = [], 0
        names.append(name.decode())
        total += size
    yield names


def decode_claim(reply: list[Any], payloads: Iterable[bytes]) -> tuple[ClaimResult, bool]:
    """Return the result of a claim, and whether the script gave up early, so that the caller claims again.

    `payloads` has the payloads of the references in the reply.
    """
    status, now, due, token, taken = reply[:5]
    try:
        left = iter(payloads)
        claimed = tuple(
            jobs.decode_job(id.decode(), raw, left) for id, raw in zip(taken[::2], taken[1::2], strict=True)
        )
    except jobs.DECODE_ERRORS:
        raise _find_unreadable(taken) from None
    claim = ClaimResult(
        jobs=claimed,
        now=int(now),
        next_due=int(due) if due else None,
        token=work_token(str(token), due.decode() if due else ""),
        lost=status == b"lost",
    )
    return claim, status == b"incomplete"


def _find_unreadable(taken: list[bytes]) -> Exception:
    """Return the error for the first job of a claim that cannot be decoded."""
    for id, raw in zip(taken[::2], taken[1::2], strict=True):
        try:
            jobs.decode_job(id.decode(), raw, repeat(b""))
        except jobs.DECODE_ERRORS:
            return jobs.UnreadableRecord("job", id.decode("utf-8", "replace"))
    raise AssertionError("bug in dibs: every job of the claim can be decoded")


def decode_reaped(reply: list[Any]) -> list[ReapedJob]:
    return [
        ReapedJob(id.decode(), int(fence), cast("ReapedKind", kind.decode()))
        for id, fence, kind in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    ]


def decode_renewed(reply: list[Any]) -> RenewResult:
    now, _, expires_at, *cancel_requested = reply
    if not expires_at:
        return RenewResult(alive=False, now=int(now))
    ids = tuple(sorted(id.decode() for id in cancel_requested))
    return RenewResult(alive=True, now=int(now), expires_at=int(expires_at), cancel_requested=ids)


def encode_records(records: Iterable[ExportRecord]) -> list[Argument]:
    arguments: list[Argument] = []
    for record in records:
        arguments += [record.id, *slots.encode_slot(record.slot), max(slots.numbers_of(record.slot))]
    return arguments


# -- settings and patches ----------------------------------------------------------------------------


def fail_queue(queue: str, patch: SettingsPatch) -> list[str]:
    """Return the fail queue of a queue if the patch sets fail_handler: ends will then enqueue into it."""
    has_fail_queue = patch.fail_handler is True and not queue.endswith(FAIL_SUFFIX)
    return [queue + FAIL_SUFFIX] if has_fail_queue else []


def encode_settings(patch: SettingsPatch) -> list[Argument]:
    arguments: list[Argument] = []
    for name, value in ((name, getattr(patch, name)) for name in patch.__struct_fields__):
        if value is UNSET:
            continue
        arguments += [name, _encode_setting(name, value)]
    return arguments


def _encode_setting(name: str, value: Any) -> str:
    if name == "retention":
        return encode_retention(value)
    if value is None:
        return ""
    if name == "shares":
        return "".join(f"\0\0{key}\0{'' if share is None else int(share)}" for key, share in value.items())
    if isinstance(value, StartRate):
        return f"{value.starts},{value.per},{value.burst}"
    # A member of an Enum whose values are texts has another `str()`.
    return str(int(value)) if isinstance(value, int) else str.__str__(value)


def decode_settings(values: Sequence[bytes | None]) -> Settings:
    """Return settings from the values of their fields in the hash `meta`. None stands for a default value."""
    named: dict[str, Any] = {}
    for name, raw in zip(SETTINGS, values, strict=True):
        if raw is not None:
            try:
                named[name] = convert(_decode_setting(name, raw.decode()), _SETTING_TYPES[name])
            except jobs.DECODE_ERRORS:
                raise jobs.UnreadableRecord("meta", name) from None
    return Settings(**named)


def _decode_setting(name: str, text: str) -> Any:
    if name in ("paused", "fail_handler", "fair"):
        return text == "1"
    if name == "shares":
        entries = (entry.split("\0") for entry in text.split("\0\0") if entry)
        return {key: int(share) for key, share in entries}
    if name in ("rate", "key_rate"):
        return StartRate(*map(int, text.split(","))) if text else None
    if name == "retention":
        return decode_retention(text)
    if name in ("log_level", "when_full"):
        return text
    return int(text) if text else None


def encode_patch(patch: JobPatch) -> list[Argument]:
    arguments: list[Argument] = []
    for name in ("payload", "priority", "run_at", "delay"):
        value = getattr(patch, name)
        if value is not UNSET:
            arguments += [name, value if type(value) is bytes else to_plain(value)]
    if patch.retention is not UNSET:
        arguments += ["retention", encode_retention(patch.retention)]
    if patch.attributes is not UNSET:
        arguments += ["attributes", encode_attributes(patch.attributes)]
    if patch.lease is not UNSET:
        arguments += ["lease", patch.lease]
    return arguments
