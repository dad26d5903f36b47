"""How long outcomes are kept: `Retention`, its conversion to ms, and its extension for a waiting caller."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from msgspec import UNSET, Struct, UnsetType

from dibs.client.options.durations import Seconds, duration_ms
from dibs.errors import Refused
from dibs.model import job as model
from dibs.model.job import DEFAULT_RETENTION, EndKind
from dibs.model.transitions import kinds_that_keep_data

#: The kinds of end, which are also the names of the fields of a retention.
ENDS: tuple[EndKind, ...] = ("completed", "failed", "cancelled")

#: Ms that an outcome is kept beyond the deadline of a waiter, because the waiter may read it late.
WAIT_SLACK_MS = 60_000
#: The retention of a job that leaves all kinds of end to its queue.
NO_RETENTION = model.OutcomeRetention()


class Retention(Struct, frozen=True, kw_only=True):
    """Seconds that the outcome of a job is kept, for each kind of end.

    None keeps the outcome for ever, 0 does not keep it, and UNSET uses the queue's setting. The default of a
    queue is 1 hour for completed, 7 days for failed and 1 hour for cancelled jobs (contract 3, Retention).
    """

    completed: Seconds | UnsetType | None = UNSET
    failed: Seconds | UnsetType | None = UNSET
    cancelled: Seconds | UnsetType | None = UNSET
    keep_payload: tuple[EndKind, ...] | UnsetType = UNSET
    """The kinds of end whose outcome keeps payload, attributes, priority, overrides and retention."""

    def to_model(self) -> model.OutcomeRetention:
        """Return the retention in ms. Raises Refused if a duration is negative."""
        return model.OutcomeRetention(
            completed=_age_ms("completed", self.completed),
            failed=_age_ms("failed", self.failed),
            cancelled=_age_ms("cancelled", self.cancelled),
            keep_payload=self.keep_payload,
        )

    @classmethod
    def from_model(cls, stored: model.OutcomeRetention) -> Retention:
        """Return a stored retention in seconds."""
        return cls(
            completed=_age_seconds(stored.completed),
            failed=_age_seconds(stored.failed),
            cancelled=_age_seconds(stored.cancelled),
            keep_payload=stored.keep_payload,
        )


def build_retention(value: Retention | Seconds | None) -> model.OutcomeRetention:
    """Return the value of a `retention=` parameter in ms. Seconds and None apply to every kind of end."""
    if isinstance(value, Retention):
        return value.to_model()
    return Retention(completed=value, failed=value, cancelled=value).to_model()


@lru_cache(256)
def retention_for_wait(queue: model.OutcomeRetention, wait: int) -> model.OutcomeRetention:
    """Return the retention of a new job that sets none and whose caller waits for `wait` ms.

    Equal calls return the same object: most calls of a program have the same arguments.
    """
    return extend_retention(queue, wait, NO_RETENTION)


def extend_retention(
    queue: model.OutcomeRetention, wait: int, own: model.OutcomeRetention, *others: model.OutcomeRetention
) -> model.OutcomeRetention:
    """Return the retention `own` of a job, extended to outlive a wait of `wait` ms; `own` if long enough.

    `queue` is the retention of the queue, which applies to kinds of end that `own` leaves UNSET. The caller
    may pass the result to `Storage.amend`. An amend sets one retention on the current job of an id, on the
    blocked job after it and on the outcome; `others` are the retentions of the other two. So the result is at
    least as long as each of `others`.
    """
    if not any(_is_shorter(_effective_age(kind, own, queue), wait + WAIT_SLACK_MS) for kind in ENDS):
        return own
    retentions = (own, *others)
    ages = {kind: _extended_age(kind, retentions, queue, wait + WAIT_SLACK_MS) for kind in ENDS}
    return model.OutcomeRetention(keep_payload=_merge_keep_payload(retentions, queue), **ages)


def _extended_age(
    kind: EndKind, retentions: Sequence[model.OutcomeRetention], queue: model.OutcomeRetention, least: int
) -> int | UnsetType | None:
    given: set[int | UnsetType | None] = {getattr(retention, kind) for retention in retentions}
    ages = [_effective_age(kind, retention, queue) for retention in retentions]
    if len(given) == 1 and not _is_shorter(ages[0], least):
        return given.pop()
    return None if None in ages else max(least, *(age for age in ages if age is not None))


def _merge_keep_payload(
    retentions: Sequence[model.OutcomeRetention], queue: model.OutcomeRetention
) -> tuple[EndKind, ...] | UnsetType:
    if len({retention.keep_payload for retention in retentions}) == 1:
        return retentions[0].keep_payload
    kept = {kind for retention in retentions for kind in kinds_that_keep_data((retention, queue))}
    return tuple(kind for kind in ENDS if kind in kept)


def _is_shorter(age: int | None, least: int) -> bool:
    return age is not None and age < least


def _effective_age(kind: EndKind, *retentions: model.OutcomeRetention) -> int | None:
    """Return the ms for which outcomes of `kind` are kept; None is for ever.

    The first of `retentions` with a value for `kind` decides, else DEFAULT_RETENTION.
    """
    for retention in (*retentions, DEFAULT_RETENTION):
        age: int | UnsetType | None = getattr(retention, kind)
        if age is not UNSET:
            return age
    raise AssertionError(f"bug in dibs: DEFAULT_RETENTION has no value for the kind of end {kind!r}")


def _age_ms(kind: EndKind, age: Seconds | UnsetType | None) -> int | UnsetType | None:
    if age is None or age is UNSET:
        return age
    ms = duration_ms(f"retention.{kind}", age)
    if ms < 0:
        raise Refused(
            f"retention.{kind} is {age}; pass 0 or more seconds, or None for ever", field="retention"
        )
    return ms


def _age_seconds(age: int | UnsetType | None) -> float | UnsetType | None:
    return age if age is None or age is UNSET else age / 1000
