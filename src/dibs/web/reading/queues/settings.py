"""The settings of a queue as texts: for a reader, and for the form that changes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import UNSET

from dibs.client.options.queue_settings import format_rate
from dibs.model.job import DEFAULT_RETENTION
from dibs.model.requests import Settings, StartRate


def form_values(settings: Settings) -> Mapping[str, str]:
    """Return the settings that a reader may change by name, as the form writes them; "" is no limit."""
    return {
        "max_active": "" if settings.max_active is None else str(settings.max_active),
        "per_key": "" if settings.per_key is None else str(settings.per_key),
        "rate": "" if settings.rate is None else format_rate(settings.rate),
        "key_rate": "" if settings.key_rate is None else format_rate(settings.key_rate),
        "log_level": settings.log_level,
    }


def setting_rows(settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield the settings of a queue that the page lists, as names and texts."""
    for name in ("max_active", "per_key"):
        number = getattr(settings, name)
        yield name, "no limit" if number is None else f"{number:,}"
    for name in ("rate", "key_rate"):
        yield name, _rate_text(getattr(settings, name))
    for kind in ("completed", "failed", "cancelled"):
        age = getattr(settings.retention, kind)
        yield f"keeps {kind}", _age_text(getattr(DEFAULT_RETENTION, kind) if age is UNSET else age)
    yield "log_level", settings.log_level
    yield "log_age", _age_text(settings.log_age)
    yield "failure handler", "yes" if settings.fail_handler else "no"


def _rate_text(rate: StartRate | None) -> str:
    if rate is None:
        return "no limit"
    burst = f", burst {rate.burst:,}" if rate.burst > 1 else ""
    return f"{rate.starts:,} in {_age_text(rate.per)}{burst}"


def _age_text(ms: int | None) -> str:
    if ms is None:
        return "for ever"
    parts, rest = [], ms
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1)):
        if count := rest // length:
            parts.append(f"{count:,} {unit}")
        rest %= length
    return " ".join(parts) or "0 s"
