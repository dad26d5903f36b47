"""How long an outcome is kept, as people write it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Struct, UnsetType

from dibs.client.options.durations import Seconds, duration_ms
from dibs.errors import Refused
from dibs.model import job as model
from dibs.model.job import DEFAULT_RETENTION, EndKind
from dibs.model.transitions import keep_payload

#: The ends a retention tells apart, as the names of its fields.
ENDS: tuple[EndKind, ...] = ("completed", "failed", "cancelled")

#: How much longer than somebody waits an outcome is kept, ms: the waiter may read it late.
SLACK = 60_000


class Retention(Struct, frozen=True, kw_only=True):
    """Seconds from the end for each kind of it; None is for ever, 0 not at all, UNSET as the queue says.

    Where nobody says anything: completed 1 h, failed 7 days, cancelled 1 h (contract 3, Retention).
    """

    completed: Seconds | UnsetType | None = UNSET
    failed: Seconds | UnsetType | None = UNSET
    cancelled: Seconds | UnsetType | None = UNSET
    #: The ends that keep payload, attributes, priority, overrides and retention.
    keep_payload: tuple[EndKind, ...] | UnsetType = UNSET

    def as_model(self) -> model.OutcomeRetention:
        """Return it in ms. Raises Refused for less than nothing."""
        return model.OutcomeRetention(
            completed=_ms("completed", self.completed),
            failed=_ms("failed", self.failed),
            cancelled=_ms("cancelled", self.cancelled),
            keep_payload=self.keep_payload,
        )


def build_retention(said: Retention | Seconds | None) -> model.OutcomeRetention:
    """Return what `retention=` says: seconds or None (for ever) count for every kind of end."""
    if isinstance(said, Retention):
        return said.as_model()
    return Retention(completed=said, failed=said, cancelled=said).as_model()


def extend_retention(
    queue: model.OutcomeRetention, wait: int, own: model.OutcomeRetention, *others: model.OutcomeRetention
) -> model.OutcomeRetention:
    """Return the retention that outlives a wait of `wait` ms; `own` when that does so already.

    An amend writes one retention to all there is of an id, so none of the `others` may be cut by it.
    """
    if not any(_shorter(_effective(kind, own, queue), wait + SLACK) for kind in ENDS):
        return own
    parts = (own, *others)
    ages = {kind: _raised(kind, parts, queue, wait + SLACK) for kind in ENDS}
    return model.OutcomeRetention(keep_payload=_keep_payload(parts, queue), **ages)


def _raised(
    kind: EndKind, parts: Sequence[model.OutcomeRetention], queue: model.OutcomeRetention, least: int
) -> int | UnsetType | None:
    said: set[int | UnsetType | None] = {getattr(part, kind) for part in parts}
    ages = [_effective(kind, part, queue) for part in parts]
    if len(said) == 1 and not _shorter(ages[0], least):
        return said.pop()
    return None if None in ages else max(least, *(age for age in ages if age is not None))


def _keep_payload(
    parts: Sequence[model.OutcomeRetention], queue: model.OutcomeRetention
) -> tuple[EndKind, ...] | UnsetType:
    if len({part.keep_payload for part in parts}) == 1:
        return parts[0].keep_payload
    kept = {kind for part in parts for kind in keep_payload(part, queue)}
    return tuple(kind for kind in ENDS if kind in kept)


def _shorter(age: int | None, least: int) -> bool:
    return age is not None and age < least


def _effective(kind: EndKind, *said: model.OutcomeRetention) -> int | None:
    for retention in (*said, DEFAULT_RETENTION):
        age: int | UnsetType | None = getattr(retention, kind)
        if age is not UNSET:
            return age
    raise AssertionError("the default names every kind")


def _ms(kind: EndKind, age: Seconds | UnsetType | None) -> int | UnsetType | None:
    if age is None or age is UNSET:
        return age
    ms = duration_ms(f"retention.{kind}", age)
    if ms < 0:
        raise Refused(f"retention.{kind} is {age}; it must be 0 or more", field="retention")
    return ms
