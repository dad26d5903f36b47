"""Settings of a queue, the keyword arguments of `queue.configure`, and their conversion to ms."""

from __future__ import annotations

from typing import Any, Final, TypedDict

from dibs.client.options.durations import Seconds, duration_ms
from dibs.client.options.job_settings import check_setting_names
from dibs.client.options.rate import Rate, build_rate
from dibs.client.options.retention import Retention, build_retention
from dibs.model.check_settings import MOST_LOG_RESULTS, MOST_STARTS
from dibs.model.check_values import check_optional_number
from dibs.model.plain_values import to_plain_text
from dibs.model.requests import LogLevel, SettingsPatch


class QueueSettings(TypedDict, total=False):
    """Settings of a queue, for `queue.configure`. A missing setting keeps its current value."""

    paused: bool
    """True stops claims from taking jobs; running jobs continue."""
    max_active: int | None
    """Most jobs that are active under leases at the same time; None is without limit."""
    per_key: int | None
    """Most jobs of one key that are active under leases at the same time; None is without limit."""
    rate: Rate | None
    """The rate at which runs of the queue may start, as in `Rate(5, per=1)`; None for no limit."""
    key_rate: Rate | None
    """The rate at which runs of one key may start, as in `Rate(10, per=60)`; None for no limit."""
    retention: Retention | Seconds | None
    """Seconds that outcomes are kept, for jobs without a retention; None is for ever."""
    log_level: LogLevel
    """The events that the log keeps: `off`, `runs` (the end of each attempt) or `all`."""
    log_age: Seconds
    """Seconds that the log keeps an event."""
    log_bytes: int
    """Size of the log in bytes. The storage removes the oldest events above it."""
    log_results: int
    """Longest result that the log keeps with the end of a completed run, in bytes, at most 4,096; 0 keeps no
    result in the log."""
    request_key_age: Seconds
    """Seconds that the storage remembers a request_key."""
    fail_handler: bool
    """True if each job that fails permanently gets a job of the failure handler, whoever ends it. Workers
    with a failure handler set it when they start."""


QUEUE_SETTINGS: Final = frozenset(QueueSettings.__annotations__)


def build_patch(changes: QueueSettings) -> SettingsPatch:
    """Return the changes as a patch for `Storage.configure`. Raises Refused."""
    check_setting_names(changes, QUEUE_SETTINGS)
    patch: dict[str, Any] = dict(changes)
    check_optional_number("max_active", patch.get("max_active"), 0, 2**31)
    check_optional_number("per_key", patch.get("per_key"), 1, MOST_STARTS)
    check_optional_number("log_bytes", patch.get("log_bytes"), 0, 2**53)
    check_optional_number("log_results", patch.get("log_results"), 0, MOST_LOG_RESULTS)
    for name in ("rate", "key_rate"):
        if name in patch:
            patch[name] = build_rate(name, patch[name])
    for name in ("log_age", "request_key_age"):
        if name in patch:
            patch[name] = duration_ms(name, patch[name])
    if "log_level" in patch:
        patch["log_level"] = to_plain_text(patch["log_level"])
    if "retention" in patch:
        patch["retention"] = build_retention(patch["retention"])
    return SettingsPatch(**patch)
