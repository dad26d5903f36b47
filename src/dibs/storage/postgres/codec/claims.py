"""Decoding of the rows of a claim. sql/columns.sql has the order of the columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw

from dibs.model.job import NO_ATTRIBUTES, ActiveRun, Error, Job, JobData, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.results import ClaimResult
from dibs.storage.postgres.codec.positions import RowPositions
from dibs.storage.postgres.codec.rows import (
    DECODE_ERRORS,
    NULL,
    decode_origin,
    raw_to_bytes,
    unreadable_job,
)

Row = Sequence[Any]


class _Rest(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The columns of a claimed job that rest_of() in functions/claim.sql packs into one."""

    attributes: dict[str, Raw] | None
    overrides: Overrides | None
    retention: OutcomeRetention | None
    first: int
    revision: int
    enqueues: int
    retries: int
    stalls: int
    timeouts: int
    error: Error | None
    origin: Raw
    key: str | None


_decode_rest: Final = msgspec.json.Decoder(_Rest).decode


def decode_claim(rows: Sequence[Row], lease: str, token: str, positions: RowPositions) -> ClaimResult:
    """Return the result of a claim, and add the positions of its rows.

    All rows but the last have arrays of jobs, and the time of their claim; the last row is about the whole
    claim.
    """
    lost, now, next_due, holder, *_ = rows[-1]
    jobs: list[Job] = []
    for row in rows[:-1]:
        claimed_at = row[1]
        priority, fences, spots, ids, payloads, starts, enqueues, seqs, attempts, memos, rests = row[5:]
        nothing = [None] * len(ids)
        positions.add(fences, spots)
        for fence, *columns, rest in zip(
            fences,
            ids,
            payloads,
            starts,
            enqueues,
            seqs,
            attempts,
            memos or nothing,
            rests or nothing,
            strict=True,
        ):
            run = ActiveRun(fence=fence, lease=lease, holder=holder, claimed_at=claimed_at)
            try:
                jobs.append(_decode_claimed_job(columns, priority, rest, run))
            except DECODE_ERRORS:
                raise unreadable_job(columns[0]) from None
    return ClaimResult(jobs=tuple(jobs), now=now, next_due=next_due, token=token, lost=lost)


def _decode_claimed_job(columns: Row, priority: int, rest: str | None, run: ActiveRun) -> Job:
    """Return a claimed job from its columns. `rest` is None for a job with payload and priority alone."""
    id, payload, run_at, enqueued_at, seq, attempts, memo = columns
    if rest is None:
        data = JobData(payload=payload, priority=priority, memo=memo)
        return Job(
            id=id,
            data=data,
            run_at=run_at,
            enqueued_at=enqueued_at,
            seq=seq,
            first=seq,
            revision=seq,
            attempts=attempts,
            run=run,
        )
    more = _decode_rest(rest)
    origin = bytes(more.origin)
    data = JobData(
        payload=payload,
        attributes=NO_ATTRIBUTES if more.attributes is None else raw_to_bytes(more.attributes),
        priority=priority,
        overrides=more.overrides,
        retention=more.retention,
        key=more.key,
        memo=memo,
    )
    return Job(
        id=id,
        data=data,
        run_at=run_at,
        enqueued_at=enqueued_at,
        seq=seq,
        first=more.first,
        revision=more.revision,
        enqueues=more.enqueues,
        attempts=attempts,
        retries=more.retries,
        stalls=more.stalls,
        timeouts=more.timeouts,
        error=more.error,
        origin=None if origin == NULL else decode_origin(origin.decode()),
        run=run,
    )


def count_filed(rows: Sequence[Row]) -> int:
    """Return the number of jobs that a claim took out of the claim order because their keys have no room."""
    return rows[-1][4] or 0
