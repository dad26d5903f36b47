"""The examination of a storage: all checks, in bounded time, with the findings in order of severity."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from itertools import groupby
from typing import Final, TypeVar

from attrs import evolve, field, frozen

from dibs.doctor.checks import (
    check_clock,
    check_keys,
    check_leases,
    check_queues,
    check_runs,
    check_workers,
)
from dibs.doctor.facts import Facts, read_facts
from dibs.errors import StorageDamaged
from dibs.model.findings import SEVERITIES, Finding, Rule
from dibs.storage.abilities import Diagnosis, ability
from dibs.storage.protocol import Storage

T = TypeVar("T")

#: Seconds that one check may take.
CHECK_SECONDS: Final = 5.0
#: Findings of one kind that are listed one by one.
MOST_OF_A_KIND: Final = 10

NOT_EXAMINED: Final = Rule(
    "not-examined",
    "note",
    "There may be faults that this examination has not found.",
    "Run it again when the storage is less busy.",
)
DAMAGED: Final = Rule(
    "storage-damaged",
    "error",
    "The disk, or another program, has changed the data. Calls that need this part are refused, so that no "
    "answered call is lost without a word and no job runs twice.",
    "Stop the programs that use the storage, and copy its data as they are. Then restore a backup. Without "
    "one: of a damaged file in commits, remove this file and all with higher numbers, and with them the "
    "calls since; remove a damaged job by its id with `queue.forget`.",
)
RULES: Final = (NOT_EXAMINED, DAMAGED)


@frozen
class Report:
    """The findings about a storage, the gravest first."""

    #: The URL without passwords.
    storage: str
    #: A sentence about the crashes that accepted jobs survive; empty if the storage was not opened.
    durability: str = ""
    findings: tuple[Finding, ...] = ()
    #: Numbers of queues that were examined, and of workers that live.
    queues: int = 0
    workers: int = 0
    was_opened: bool = field(default=False, kw_only=True)

    @property
    def is_healthy(self) -> bool:
        """True without errors and warnings; notes do not count."""
        return all(finding.severity == "note" for finding in self.findings)


async def examine(storage: Storage, clock: Callable[[], float] = time.time) -> Report:
    """Examine a storage that is not open. Raise StorageError if it cannot be reached or opened.

    A storage that this dibs would migrate, or refuse, is not opened: its server alone is examined. A damaged
    storage is a finding.
    """
    findings = await _diagnose(storage)
    report = Report(storage.url)
    if not any(finding.blocks for finding in findings):
        try:
            async with storage:
                report = await _examine_content(storage, clock)
        except StorageDamaged as error:
            findings.append(DAMAGED.finding(str(error)))
    return evolve(report, findings=in_order([*findings, *report.findings]))


async def examine_open(storage: Storage, clock: Callable[[], float] = time.time) -> Report:
    """Examine a storage that is open, and leave it open. Raise StorageError."""
    findings = await _diagnose(storage)
    report = await _examine_content(storage, clock)
    return evolve(report, findings=in_order([*findings, *report.findings]))


async def _diagnose(storage: Storage) -> list[Finding]:
    diagnosis = ability(storage, Diagnosis)
    return [] if diagnosis is None else [*await diagnosis.diagnose()]


async def _examine_content(storage: Storage, clock: Callable[[], float]) -> Report:
    findings: list[Finding] = []

    async def bounded(what: str, check: Awaitable[T]) -> T | None:
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await check
        except TimeoutError:
            findings.append(NOT_EXAMINED.finding(f"{what}: no answer in {CHECK_SECONDS:g} s"))
            return None

    findings += await bounded("the clock", check_clock(storage, clock)) or ()
    facts = await bounded("queues and workers", read_facts(storage))
    if facts is None:
        return Report(storage.url, storage.durability, tuple(findings), was_opened=True)
    findings += [*check_queues(facts), *check_workers(facts), *_uncounted(facts)]
    findings += await bounded("retrying jobs", _all(check_runs(storage, facts))) or ()
    findings += await bounded("paused keys", _all(check_keys(storage, facts))) or ()
    findings += await bounded("leases", _all(check_leases(storage, facts))) or ()
    return Report(
        storage.url,
        storage.durability,
        tuple(findings),
        len(facts.counts),
        len(facts.workers),
        was_opened=True,
    )


async def _all(found: AsyncIterable[Finding]) -> list[Finding]:
    return [finding async for finding in found]


def _uncounted(facts: Facts) -> list[Finding]:
    if left := len(facts.settings) - len(facts.counts):
        return [NOT_EXAMINED.finding(f"{left:,} of {len(facts.settings):,} queues were not counted in time")]
    return []


def in_order(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return the findings by severity, code and subject, with one line for all beyond MOST_OF_A_KIND."""
    ordered = sorted(findings, key=lambda each: (SEVERITIES.index(each.severity), each.code, each.subject))
    shown: list[Finding] = []
    for _, group in groupby(ordered, key=lambda each: each.code):
        shown += _shorten(list(group))
    return tuple(shown)


def _shorten(group: Sequence[Finding]) -> Sequence[Finding]:
    left = len(group) - MOST_OF_A_KIND
    if left <= 0:
        return group
    first = group[MOST_OF_A_KIND]
    more = Rule(first.code, first.severity, first.means, first.advice)
    return [*group[:MOST_OF_A_KIND], more.finding(f"the same in {left:,} more", "...")]
