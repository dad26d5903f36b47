"""Decoding of rows as values of dibs.model. sql/columns.sql has the order of the columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from dibs.model.job import (
    EMPTY,
    NO_ATTRIBUTES,
    ActiveRun,
    Error,
    Job,
    JobData,
    Origin,
    Outcome,
    OutcomeRetention,
    RevisionRange,
    Slot,
    Successor,
)
from dibs.model.overrides import unpack_overrides
from dibs.model.requests import EnqueueRequest, Settings, StartRate
from dibs.model.results import EnqueueResult, QueueInfo, SettleResult
from dibs.model.rules import REASON_CAN_ONLY_END

Row = Sequence[Any]

_attributes: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_retention: Final = msgspec.json.Decoder(OutcomeRetention).decode
_rate: Final = msgspec.json.Decoder(StartRate).decode
_shares: Final = msgspec.json.Decoder(dict[str, int]).decode
_error: Final = msgspec.json.Decoder(Error).decode
_origin: Final = msgspec.json.Decoder(Origin).decode
_origin_parts: Final = msgspec.json.Decoder(list[Raw]).decode
#: The JSON of a column that is NULL.
NULL: Final = b"null"

#: How many columns of sql/columns.sql a job, a run, a successor and an outcome have.
JOB: Final = 20
RUN: Final = 6
SUCCESSOR: Final = 17
OUTCOME: Final = 26
#: The number of columns in the row of the query enqueue_one.
ENQUEUED_ONE: Final = 4


class UnreadableRow(Exception):
    """Raised for a stored row that cannot be decoded. The text names it, as in "the record of job 'a'"."""


#: The errors that the decoding of a damaged row may raise.
DECODE_ERRORS: Final = (ValueError, LookupError, TypeError)


def decode_data(
    payload: bytes,
    attributes: str | None,
    priority: int,
    overrides: str | None,
    kept: str | None,
    key: str | None,
    *,
    memo: bytes | None = None,
) -> JobData:
    """Return the data of a job from its columns: the part that an update replaces as a whole."""
    return JobData(
        payload=payload,
        attributes=NO_ATTRIBUTES if attributes is None else decode_attributes(attributes),
        priority=priority,
        overrides=None if overrides is None else unpack_overrides(overrides),
        retention=None if kept is None else _retention(kept),
        key=key,
        memo=memo,
    )


def decode_attributes(text: str) -> dict[str, bytes]:
    """Return attributes from a JSON object. The value of each is its JSON text, not parsed."""
    return raw_to_bytes(_attributes(text))


def raw_to_bytes(attributes: dict[str, Raw]) -> dict[str, bytes]:
    return {name: bytes(value) for name, value in attributes.items()}


def decode_job(row: Row, run: ActiveRun | None) -> Job:
    """Return a job from its columns and its run (None for a waiting job)."""
    (id, payload, attributes, priority, overrides, kept, run_at, enqueued_at, seq, first, revision, enqueues,
     attempts, retries, stalls, timeouts, error, origin, key, memo) = row  # fmt: skip
    return Job(
        id=id,
        data=decode_data(payload, attributes, priority, overrides, kept, key, memo=memo),
        run_at=run_at,
        enqueued_at=enqueued_at,
        seq=seq,
        first=first,
        revision=revision,
        enqueues=enqueues,
        attempts=attempts,
        retries=retries,
        stalls=stalls,
        timeouts=timeouts,
        error=None if error is None else _error(error),
        origin=None if origin is None else decode_origin(origin),
        run=run,
    )


def decode_origin(text: str) -> Origin:
    """Return the origin of a fail job from its JSON array. The attributes are last, an object or null."""
    *parts, last = map(bytes, _origin_parts(text))
    attributes = NO_ATTRIBUTES if last == NULL else decode_attributes(last.decode())
    return replace(_origin(b"[" + b",".join(parts) + b"]"), attributes=attributes)


def decode_run(row: Row) -> ActiveRun | None:
    """Return the active run of a job from its columns; None for a waiting job, whose columns are NULL."""
    fence, claimed_at, lease, holder, cancel_requested, progress = row
    if fence is None:
        return None
    return ActiveRun(
        fence=fence,
        lease=None if lease is None else lease.replace("-", ""),
        holder=holder,
        claimed_at=claimed_at,
        progress=None if progress is None else progress.encode(),
        cancel_requested=bool(cancel_requested),
    )


def decode_successor(row: Row) -> Successor:
    (payload, attributes, priority, overrides, kept, replaces, run_at, lo, hi, resets, enqueued_at, seq,
     first, revision, enqueues, key, creates) = row  # fmt: skip
    return Successor(
        data=decode_data(payload, attributes, priority, overrides, kept, key),
        replaces=replaces,
        run_at=run_at,
        lo=lo,
        hi=hi,
        resets=resets,
        enqueued_at=enqueued_at,
        seq=seq,
        first=first,
        revision=revision,
        enqueues=enqueues,
        creates=creates is not False,
    )


def decode_outcome(row: Row) -> Outcome:
    (kind, fence, first, revision, ended_at, expires_at, result, error, enqueues, enqueued_at, run_at,
     claimed_at, holder, attempts, retries, stalls, timeouts, payload, attributes, priority, overrides, kept,
     origin, key, memo, progress) = row  # fmt: skip
    data = None
    if payload is not None:
        data = decode_data(payload, attributes, priority, overrides, kept, key, memo=memo)
    return Outcome(
        kind=kind,
        fence=fence,
        first=first,
        revision=revision,
        ended_at=ended_at,
        expires_at=expires_at,
        result=result,
        error=None if error is None else _error(error),
        enqueues=enqueues,
        enqueued_at=enqueued_at,
        run_at=run_at,
        claimed_at=claimed_at,
        holder=holder or "",
        attempts=attempts,
        retries=retries,
        stalls=stalls,
        timeouts=timeouts,
        data=data,
        origin=None if origin is None else decode_origin(origin),
        attributes=NO_ATTRIBUTES if data is not None or attributes is None else decode_attributes(attributes),
        progress=None if progress is None else progress.encode(),
    )


def decode_slot(row: Row) -> Slot:
    """Return the slot in a row of the query `get`, without an expired outcome.

    `row` begins with the time of the server, after the id.
    """
    now, state = row[0], row[1]
    parts = row[2:]
    job, run, parts = parts[:JOB], parts[JOB : JOB + RUN], parts[JOB + RUN :]
    successor, outcome = parts[:SUCCESSOR], parts[SUCCESSOR:]
    current = None if state is None else decode_job(job, decode_run(run))
    unexpired = outcome[0] is not None and (outcome[5] is None or now < outcome[5])
    if current is None and not unexpired:
        return EMPTY
    return Slot(
        current,
        None if successor[11] is None else decode_successor(successor),
        decode_outcome(outcome[:OUTCOME]) if unexpired else None,
        _decode_ranges([*(outcome[OUTCOME] or ()), *(outcome[OUTCOME + 1] or ())]),
    )


def decode_slots(rows: Iterable[Row]) -> list[tuple[str, Slot]]:
    """Return the ids and slots in the rows of the queries `get` and `page`. Raise UnreadableRow."""
    slots = []
    for row in rows:
        try:
            slots.append((row[0], decode_slot(row[1:])))
        except DECODE_ERRORS:
            raise unreadable_job(row[0]) from None
    return slots


def unreadable_job(id: str) -> UnreadableRow:
    return UnreadableRow(f"the record of job {id!r}")


def _decode_ranges(flat: Sequence[int]) -> tuple[RevisionRange, ...]:
    return tuple(zip(flat[::2], flat[1::2], strict=True))[-8:]


def decode_enqueued(rows: Sequence[Row], requests: Sequence[EnqueueRequest]) -> list[EnqueueResult]:
    """Return the results of an enqueue, with the outcomes that requests wanted. Raise UnreadableRow."""
    if len(rows[0]) == ENQUEUED_ONE:
        status, found, first, revision = rows[0]
        if status is None:
            return [EnqueueResult("queued", "nothing", revision, revision)]
        return [EnqueueResult(status, found, first, revision)]
    statuses, founds, firsts, revisions, repeats, first_ids, *_ = rows[0]
    if statuses is None:
        return [EnqueueResult("queued", "nothing", n, n) for n in revisions]
    results = [
        EnqueueResult(
            statuses[i],
            founds[i],
            firsts[i],
            revisions[i],
            repeated=repeats[i],
            id=(first_ids[i] or "") if repeats[i] else "",
        )
        for i in range(len(requests))
    ]
    for _, _, _, _, _, _, number, *outcome in rows[1:]:
        if results[number - 1].repeated:
            continue
        try:
            results[number - 1] = replace(results[number - 1], outcome=decode_outcome(outcome))
        except DECODE_ERRORS:
            raise unreadable_job(requests[number - 1].job.id) from None
    return results


def decode_enqueued_one(columns: Sequence[bytes | None]) -> EnqueueResult:
    """Return the result of enqueue_one from its columns in the binary format: two texts, two numbers."""
    status, found, first, revision = columns
    number = _to_number(revision)
    if status is None:
        return EnqueueResult("queued", "nothing", number, number)
    answer: tuple[Any, ...] = (status.decode(), (found or b"").decode(), _to_number(first), number)
    return EnqueueResult(*answer)


def _to_number(column: bytes | None) -> int:
    return int.from_bytes(column or b"", signed=True)


def decode_settled(
    statuses: Sequence[Any] | None, revisions: Sequence[Any] | None, reasons: Sequence[str]
) -> list[SettleResult]:
    """Return the results of a settle.

    `reasons` has the reasons to refuse that were found before sending it.
    """
    if statuses is None:
        return [SettleResult("done")] * len(reasons)
    results = []
    for i, status in enumerate(statuses):
        reason = "" if status != "refused" else reasons[i] or REASON_CAN_ONLY_END
        revision = revisions[i] if revisions is not None and i < len(revisions) else None
        results.append(SettleResult(status, reason, revision or 0))
    return results


def decode_settings(row: Row) -> QueueInfo:
    """Return the name and the settings of a queue from its row."""
    (name, paused, max_active, retention, level, age, size, keys, fail_handler, results, per_key, rate,
     key_rate, max_waiting, when_full, fair, shares) = row  # fmt: skip
    try:
        kept, known_shares = _retention(retention), _shares(shares)
    except DECODE_ERRORS:
        raise UnreadableRow("the row of the settings") from None
    settings = Settings(
        paused=paused,
        max_active=max_active,
        retention=kept,
        log_level=level,
        log_age=age,
        log_bytes=size,
        request_key_age=keys,
        fail_handler=fail_handler,
        log_results=results,
        per_key=per_key,
        rate=None if rate is None else _rate(rate),
        key_rate=None if key_rate is None else _rate(key_rate),
        max_waiting=max_waiting,
        when_full=when_full,
        fair=fair,
        shares=known_shares,
    )
    return QueueInfo(name, settings)


def rows_by_name(rows: Iterable[Row]) -> dict[str, Row]:
    """Return rows as a mapping from their first column, the name of a queue."""
    return {row[0]: row for row in rows}
