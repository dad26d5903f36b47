"""The storage itself: its URL without secrets, durability, abilities and sizes."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from typing import Final

import attrs
from attrs import frozen

from dibs.model.findings import Finding
from dibs.model.requests import Settings
from dibs.storage.protocol import Storage
from dibs.version import VERSION
from dibs.web.reading.queue import setting_rows
from dibs.web.reading.source import Source

#: Most queues with changed settings that the page lists.
MAX_LISTED: Final = 100
#: Seconds after which the page shows the queues that were counted so far.
COUNT_SECONDS: Final = 1.0
#: Ability -> its explanation for a reader of the page.
ABILITIES: Final = {
    "durable": "jobs survive the death of every process that uses the storage",
    "shared": "several processes may use the storage at the same time",
    "cross_queue": "follow-up jobs may go to other queues in the same atomic step",
    "transactions": "an enqueue can be part of a database transaction of the caller",
    "push_wakeups": "a change wakes waiting workers and callers at once",
    "server_clock": "the time is that of the server",
    "blocking_claim": "a claim can wait in the storage until a job is due",
    "limits": "claims obey limits by key and rate",
    "fair": "the keys of a queue may take turns",
    "output": "jobs keep the output that their runs write",
    "many_queues": "a worker serves all its queues in one request",
    "manual_clock": "can be opened with a manual clock, for tests",
}
COUNTED: Final = ("waiting", "active", "blocked", "completed", "failed", "cancelled")


@frozen
class PlacePage:
    """A storage, without any secret of its URL."""

    url: str
    durability: str
    survives_power_loss: bool
    #: Name, explanation and flag of each ability.
    abilities: tuple[tuple[str, str, bool], ...]
    #: Labels with texts: versions and numbers.
    facts: tuple[tuple[str, str], ...]
    #: Queue, and the settings that differ from the defaults.
    changed: tuple[tuple[str, str], ...]
    #: The findings of `dibs doctor`, the gravest first; None while the first examination goes on.
    findings: tuple[Finding, ...] | None


async def read_place(source: Source, _params: Mapping[str, str]) -> PlacePage:
    """Return the description of the storage."""
    storage = await source.storage()
    report = await source.examination.report()
    counts, queues = await source.census.counts(seconds=COUNT_SECONDS), await source.census.queues()
    totals = {state: sum(getattr(each, state) for each in counts.values()) for state in COUNTED}
    is_exact = len(counts) == len(queues) and not any(each.approximate for each in counts.values())
    about = "" if is_exact else "about "
    changed = ((name, _changed(settings)) for name, settings in queues.items())
    flags = attrs.asdict(storage.capabilities)
    return PlacePage(
        url=storage.url,
        durability=storage.durability,
        survives_power_loss=storage.durability.startswith("power loss"),
        abilities=tuple((name, text, bool(flags.get(name))) for name, text in ABILITIES.items()),
        facts=(
            ("dibs", VERSION),
            ("Python of the dashboard", platform.python_version()),
            *_driver(storage),
            ("queues", f"{len(queues):,}"),
            *((state, f"{about}{number:,}") for state, number in totals.items()),
        ),
        changed=tuple((name, text) for name, text in changed if text)[:MAX_LISTED],
        findings=None if report is None else report.findings,
    )


def _driver(storage: Storage) -> Iterator[tuple[str, str]]:
    scheme = storage.url.partition(":")[0]
    if scheme:
        yield "storage", scheme


def _changed(settings: Settings) -> str:
    defaults = dict(setting_rows(Settings()))
    rows = [f"{name}: {text}" for name, text in setting_rows(settings) if text != defaults.get(name)]
    return ", ".join(["paused", *rows] if settings.paused else rows)
