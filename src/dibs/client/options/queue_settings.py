"""What a queue can be set to, as people write it."""

from __future__ import annotations

from typing import Any, Final, TypedDict

from dibs.client.options.durations import Seconds, duration_ms
from dibs.client.options.job_settings import check_setting_names
from dibs.client.options.retention import Retention, build_retention
from dibs.model.check_values import check_number
from dibs.model.requests import LogLevel, SettingsPatch


class QueueSettings(TypedDict, total=False):
    """What is left out stays as it is."""

    paused: bool
    #: How many jobs may be active under leases at once; None is any number.
    max_active: int | None
    #: How long outcomes are kept where the job does not say.
    retention: Retention | Seconds | None
    #: What the log keeps: off, runs (ends of attempts) or all.
    log_level: LogLevel
    #: How long the log reaches back, in seconds, and its size in bytes.
    log_age: Seconds
    log_bytes: int
    #: How long a request_key is remembered, in seconds.
    request_key_age: Seconds


QUEUE_SETTINGS: Final = frozenset(QueueSettings.__annotations__)


def build_patch(changes: QueueSettings) -> SettingsPatch:
    """Return the changes as the contract has them. Raises Refused."""
    check_setting_names(changes, QUEUE_SETTINGS)
    patch: dict[str, Any] = dict(changes)
    check_number("max_active", patch.get("max_active"), 0, 2**31)
    check_number("log_bytes", patch.get("log_bytes"), 0, 2**53)
    for name in ("log_age", "request_key_age"):
        if name in patch:
            patch[name] = duration_ms(name, patch[name])
    if "retention" in patch:
        patch["retention"] = build_retention(patch["retention"])
    return SettingsPatch(**patch)
