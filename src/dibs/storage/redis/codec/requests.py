"""What the scripts are asked, and what they answer: requests as words, answers as values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import Struct as Layout
from typing import Any, Final, cast

from msgspec import UNSET, convert
from msgspec.structs import asdict

from dibs.model.check_jobs import CheckedBatch
from dibs.model.requests import (
    EnqueueRequest,
    JobPatch,
    OnConflict,
    Reject,
    Settings,
    SettingsPatch,
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
from dibs.storage.redis.codec import jobs as codec
from dibs.storage.redis.codec import slots

Word = bytes | str | int

RULES: Final = {"always": 0, "never": 16, "later": 32, "earlier": 48}
STATUSES: Final[tuple[EnqueueStatus, ...]] = (
    "queued", "updated", "blocked", "duplicate", "completed", "failed",
)  # fmt: skip
FOUND: Final[tuple[FoundState, ...]] = ("nothing", "waiting", "active", "active+blocked")
SETTINGS: Final = tuple(Settings.__struct_fields__)

_REQUEST: Final = Layout(">BBhQB")
#: What a request begins with that says nothing but id and payload, the flags of its data included.
_PLAIN: Final = _REQUEST.pack(4 | 8 | RULES["always"], 0, 0, 0, 0) + b"\0"
_ENQUEUED: Final = Layout(">BBBQQ")


def id_word(id: str) -> bytes:
    """Return an id as bytes; what cannot be an id becomes one that nobody has."""
    return id.encode("utf-8", "surrogatepass")


# -- enqueue -----------------------------------------------------------------------------------------


def request_words(requests: CheckedBatch) -> list[Word]:
    """Return what all of them begin with, nothing where each has its own, then id and the rest by turns."""
    words: list[Word] = []
    if requests.plain:
        words.append(_PLAIN)
        for request in requests:
            job = request.job
            words += (job.id, job.data.payload)
        return words
    words.append(b"")
    for request in requests:
        job = request.job
        word = request_word(job, request.on_conflict, request.request_key, wants=request.want_outcome)
        words += (job.id, word)
    return words


def request_word(job: Any, how: OnConflict, key: str | None, *, wants: bool = False) -> bytes:
    if isinstance(how, Reject):
        mode = 2 if how.failed else 1
    else:
        mode = (4 if how.data else 0) | (8 if how.resets else 0) | RULES[how.run_at]
    time, at = 0, 0
    if job.run_at is not None:
        time, at = 1, job.run_at
    elif job.delay is not None:
        time, at = 2, job.delay
    data, raw_key = job.data, b"" if key is None else key.encode()
    head = _REQUEST.pack(mode, time | (4 if wants else 0), data.priority, at, len(raw_key))
    return head + raw_key + codec.encode_data(data)


def enqueued(requests: Sequence[EnqueueRequest], reply: list[Any]) -> list[EnqueueResult]:
    answers, now, outcomes, first = reply
    if first:
        number = int(first)
        return [EnqueueResult("queued", "nothing", n, n) for n in range(number, number + len(requests))]
    kept = iter(outcomes)
    told = []
    for request, (status, found, again, first, last) in zip(
        requests, _ENQUEUED.iter_unpack(answers), strict=True
    ):
        outcome = None
        if request.want_outcome and not again:
            outcome = slots.alive(next(kept), int(now))
        told.append(EnqueueResult(STATUSES[status - 1], FOUND[found - 1], first, last, outcome, bool(again)))
    return told


def lease_word(lease: str) -> str:
    """Return a lease, or one that nobody has for what cannot be one."""
    return lease if len(lease) == 32 and lease.isascii() else "-" * 32


def work_token(work: str, next_due: str) -> str:
    """Return where a queue stands for those who claim: its count of work, and when a job falls due next.

    The count does not move when time alone makes a job due, so a claim says up to when it was right.
    """
    return f"{work}/{next_due}"


def work_has_moved(since: str, work: str, now: int) -> bool:
    """Tell whether a claim may find more than the one whose token this is."""
    count, _, due = since.partition("/")
    return count != work or (due.isdecimal() and int(due) <= now)


def claim(reply: list[Any]) -> tuple[ClaimResult, bool]:
    """Return what a claim took, and whether it ended early."""
    status, now, due, token, taken = reply
    jobs = tuple(codec.decode_job(id.decode(), raw) for id, raw in zip(taken[::2], taken[1::2], strict=True))
    claim = ClaimResult(
        jobs=jobs,
        now=int(now),
        next_due=int(due) if due else None,
        token=work_token(token.decode(), due.decode() if due else ""),
        lost=status == b"lost",
    )
    return claim, status == b"incomplete"


def reaped(reply: list[Any]) -> list[ReapedJob]:
    return [
        ReapedJob(id.decode(), int(fence), cast("ReapedKind", kind.decode()))
        for id, fence, kind in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    ]


def renewed(reply: list[Any]) -> RenewResult:
    now, expires_at, *asked = reply
    if not expires_at:
        return RenewResult(alive=False, now=int(now))
    ids = tuple(sorted(id.decode() for id in asked))
    return RenewResult(alive=True, now=int(now), expires_at=int(expires_at), cancel_requested=ids)


def record_words(records: Iterable[ExportRecord]) -> list[Word]:
    words: list[Word] = []
    for record in records:
        words += [record.id, *slots.encode_slot(record.slot), max(slots.numbers_of(record.slot))]
    return words


# -- settings and patches ----------------------------------------------------------------------------


def settings_words(patch: SettingsPatch) -> list[Word]:
    words: list[Word] = []
    for name, value in ((name, getattr(patch, name)) for name in patch.__struct_fields__):
        if value is UNSET:
            continue
        words += [name, _setting(name, value)]
    return words


def _setting(name: str, value: Any) -> str:
    if name == "retention":
        return codec.encode_retention(value)
    if value is None:
        return ""
    return str(int(value)) if isinstance(value, int) else str(value)


def settings_of(values: Sequence[bytes | None]) -> Settings:
    """Return settings from their fields, as Redis keeps them."""
    named: dict[str, Any] = {}
    for name, raw in zip(SETTINGS, values, strict=True):
        if raw is not None:
            named[name] = _read_setting(name, raw.decode())
    return convert({**asdict(Settings()), **named}, Settings)


def _read_setting(name: str, text: str) -> Any:
    if name == "paused":
        return text == "1"
    if name == "retention":
        return codec.decode_retention(text)
    if name == "log_level":
        return text
    return int(text) if text else None


def patch_words(patch: JobPatch) -> list[Word]:
    words: list[Word] = []
    for name in ("payload", "priority", "run_at", "delay"):
        value = getattr(patch, name)
        if value is not UNSET:
            words += [name, value]
    if patch.retention is not UNSET:
        words += ["retention", codec.encode_retention(patch.retention)]
    if patch.attributes is not UNSET:
        words += ["attributes", codec.encode_attributes(patch.attributes)]
    return words
