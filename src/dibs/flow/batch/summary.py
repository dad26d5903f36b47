"""The summary of a batch, which is the result of its ticket and its progress, and the status of its job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
from attrs import frozen
from msgspec import Struct

from dibs.flow.batch.plan import is_batch
from dibs.model.job import Error, Slot


class BatchSummary(Struct, frozen=True, kw_only=True):
    """The numbers of members of a batch, by their state."""

    members: int = 0
    """Number of members that were added, including missing ones."""
    completed: int = 0
    """Number of members that completed."""
    failed: int = 0
    """Number of members that failed."""
    cancelled: int = 0
    """Number of members that were cancelled."""
    lost: int = 0
    """Number of members that ended, and whose outcomes were not kept long enough to be counted."""
    missing: int = 0
    """Number of members whose enqueue was begun and never happened, because their producer was killed."""
    open: int = 0
    """Number of members that have not ended; 0 at the end of the batch."""
    producer_lost: bool = False
    """True if the batch was closed because its producer did not close it."""

    @property
    def has_failure(self) -> bool:
        """True if a member has ended without completing, or is missing."""
        return bool(self.failed or self.cancelled or self.lost or self.missing)

    @property
    def is_success(self) -> bool:
        """True if all members have completed, and their producer closed the batch."""
        return self.completed == self.members and not self.producer_lost


decode_summary: Final = msgspec.json.Decoder(BatchSummary).decode


@frozen
class BatchStatus:
    """The state of a batch, and the numbers of its members: None before the first report."""

    id: str
    state: str
    summary: BatchSummary | None
    error: Error | None
    enqueued_at: int | None
    ended_at: int | None


def flow_attributes(slot: Slot) -> Mapping[str, bytes]:
    """Return the attributes of a flow or a batch, also after its end."""
    if slot.current is not None:
        return slot.current.data.attributes
    return {} if slot.outcome is None else slot.outcome.kept_attributes


def find_batch(id: str, slot: Slot) -> BatchStatus | None:
    """Return the status of a batch; None for another job."""
    if not is_batch(flow_attributes(slot)):
        return None
    if (job := slot.current) is not None:
        state = "waiting" if job.run is None else "handed_off" if job.run.lease is None else "active"
        progress = None if job.run is None else job.run.progress
        return BatchStatus(id, state, _decode_known(progress), job.error, job.enqueued_at, None)
    outcome = slot.outcome
    assert outcome is not None  # noqa: S101 - a slot with attributes has a job or an outcome
    summary = _decode_known(outcome.result)
    return BatchStatus(id, outcome.kind, summary, outcome.error, outcome.enqueued_at, outcome.ended_at)


def _decode_known(raw: bytes | None) -> BatchSummary | None:
    return None if raw is None else decode_summary(raw)
