"""What a caller asks of a storage: how an enqueue meets a known id, how a run is settled, a patch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from dibs.model.job import Error, NewJob, OutcomeRetention
from dibs.model.retry import RetryCause

RunAtRule = Literal["always", "never", "later", "earlier"]
LogLevel = Literal["off", "runs", "all"]


class Update(Struct, frozen=True, gc=False, tag="update"):
    """A known id takes the new job in: a waiting one at once, an active one after its run."""

    #: Replace payload, attributes, priority, overrides and retention together, or none of them.
    data: bool = True
    #: Take the new time, keep the old, or take the later or the earlier of both.
    run_at: RunAtRule = "always"
    #: Zero the counts; None does as `data` does.
    reset_counts: bool | None = None

    @property
    def resets(self) -> bool:
        """Tell whether the counts are zeroed."""
        return self.data if self.reset_counts is None else self.reset_counts


class Reject(Struct, frozen=True, gc=False, tag="reject"):
    """A known id stays as it is."""

    #: An id whose failed outcome is still kept counts as known, too.
    failed: bool = False


OnConflict = Update | Reject
DEFAULT_UPDATE = Update()


class EnqueueRequest(Struct, frozen=True, gc=False, kw_only=True):
    """One item of an enqueue."""

    job: NewJob
    on_conflict: OnConflict = DEFAULT_UPDATE
    #: At most 128 bytes; a repeat within its time changes nothing and gets the first answer.
    request_key: str | None = None
    want_outcome: bool = False


class FollowUp(Struct, frozen=True, gc=False, kw_only=True):
    """A job to enqueue in the same atomic step as an end."""

    queue: str
    job: NewJob
    on_conflict: OnConflict = DEFAULT_UPDATE


class Complete(Struct, frozen=True, gc=False, kw_only=True, tag="complete"):
    """The run ended well. `retention`, where given, takes the place of the job's own."""

    result: bytes | None = None
    then: tuple[FollowUp, ...] = ()
    retention: OutcomeRetention | None = None


class Fail(Struct, frozen=True, gc=False, kw_only=True, tag="fail"):
    """The run failed for good; with `handled` the storage enqueues the fail job in the same step."""

    error: Error
    handled: bool = False
    then: tuple[FollowUp, ...] = ()
    retention: OutcomeRetention | None = None


class Cancelled(Struct, frozen=True, gc=False, kw_only=True, tag="cancelled"):
    """The run was cancelled."""

    retention: OutcomeRetention | None = None


class RetryLater(Struct, frozen=True, gc=False, kw_only=True, tag="retry"):
    """The job waits again, after `delay` ms or at `run_at`, at most one of them."""

    delay: int | None = None
    run_at: int | None = None
    cause: RetryCause = "error"
    error: Error | None = None


class Release(Struct, frozen=True, gc=False, tag="release"):
    """The job waits again as before its claim, without a mark on it."""


class HandOff(Struct, frozen=True, gc=False, tag="hand_off"):
    """The run leaves its lease and will be ended from elsewhere."""


End = Complete | Fail | Cancelled
SettleAction = Complete | Fail | Cancelled | RetryLater | Release | HandOff


class Settlement(Struct, frozen=True, gc=False, kw_only=True):
    """What became of one claimed run."""

    id: str
    fence: int
    how: SettleAction


class JobPatch(Struct, frozen=True, gc=False, kw_only=True):
    """What amend changes; UNSET stays as it is."""

    #: Merged at the top level.
    attributes: Mapping[str, bytes] | UnsetType = UNSET
    payload: bytes | UnsetType = UNSET
    run_at: int | UnsetType = UNSET
    delay: int | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    retention: OutcomeRetention | UnsetType = UNSET


class Settings(Struct, frozen=True, gc=False, kw_only=True):
    """What a queue is set to. Ages in ms, sizes in bytes."""

    paused: bool = False
    #: How many jobs of the queue may be active under leases at once; None is any number.
    max_active: int | None = None
    retention: OutcomeRetention = OutcomeRetention()
    log_level: LogLevel = "runs"
    log_age: int = 86_400_000
    log_bytes: int = 64 * 1024 * 1024
    request_key_age: int = 3_600_000


class SettingsPatch(Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What configure changes; UNSET stays as it is."""

    paused: bool | UnsetType = UNSET
    max_active: int | UnsetType | None = UNSET
    retention: OutcomeRetention | UnsetType = UNSET
    log_level: LogLevel | UnsetType = UNSET
    log_age: int | UnsetType = UNSET
    log_bytes: int | UnsetType = UNSET
    request_key_age: int | UnsetType = UNSET
