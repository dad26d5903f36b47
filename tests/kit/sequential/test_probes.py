"""Tests of the probes: each finds the error that it is about, and describes it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from dibs.model.requests import SettingsPatch
from dibs.model.results import ClaimResult, Counts, EventPage, ExportPage, ListPage, State, WaitResult
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Storage
from dibs.storage.registry import open_storage
from dibs_conformance import certify
from dibs_conformance.sequential.capabilities import blocks_claims, joins_transactions
from dibs_conformance.sequential.probes import (
    bounded_log,
    check_partitioned_reads,
    large_counts,
    wake_up_outcomes,
)
from dibs_conformance.target import Locations


class Wrapped:
    """A memory storage with some changed results."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class WrongCounts(Wrapped):
    """A storage whose counts are 1 too low."""

    async def counts(self, queues: list[str], **when: Any) -> dict[str, Counts]:
        counted = await self._storage.counts(queues, **when)
        return {queue: replace(counts, waiting=counts.waiting - 1) for queue, counts in counted.items()}


class ApproximateCounts(WrongCounts):
    """A storage whose counts are 1 too low and marked approximate."""

    async def counts(self, queues: list[str], **when: Any) -> dict[str, Counts]:
        counted = await super().counts(queues, **when)
        return {queue: replace(counts, approximate=True) for queue, counts in counted.items()}


class UntrimmedLog(Wrapped):
    """A storage that never trims its log."""

    async def configure(self, queue: str, patch: SettingsPatch, **when: Any) -> Any:
        return await self._storage.configure(queue, replace(patch, log_bytes=UNSET), **when)


class NoFellOff(Wrapped):
    """A storage that trims its log without fell_off."""

    async def events(self, queue: str, **words: Any) -> EventPage:
        return replace(await self._storage.events(queue, **words), fell_off=False)


class EndlessParts(Wrapped):
    """A storage whose parts of an export all go to the end."""

    async def export(self, queue: str, **words: Any) -> ExportPage:
        return await self._storage.export(queue, **{**words, "until": None})


class GappedParts(Wrapped):
    """A storage whose parts start behind the end of the part before."""

    async def split(self, queue: str, parts: int, **words: Any) -> list[str]:
        self._cuts = await self._storage.split(queue, parts, **words)
        return [*self._cuts]

    async def list(self, queue: str, state: State, *, after: str | None = None, **words: Any) -> ListPage:
        beside = f"{after[0]}~" if after is not None and after in self._cuts else after
        return await self._storage.list(queue, state, after=beside, **words)


class ShiftingParts(Wrapped):
    """A storage that splits again for each read, so that the parts change."""

    async def export(self, queue: str, *, until: str | None = None, **words: Any) -> ExportPage:
        cuts = () if until is None else await self._storage.split(queue, 2)
        return await self._storage.export(queue, until=cuts[0] if cuts else None, **words)


class TooManyParts(Wrapped):
    """A storage that splits into more parts than requested."""

    async def split(self, queue: str, parts: int, **words: Any) -> Sequence[str]:
        return await self._storage.split(queue, parts + 1, **words)


class NoParts(Wrapped):
    """A storage that cannot split, and returns no cursors."""

    async def split(self, queue: str, parts: int, **words: Any) -> tuple[str, ...]:
        return ()


class FalseOutcomes(Wrapped):
    """A storage whose wake-ups carry false outcomes."""

    async def wait(self, queues: Sequence[str], *, ids: Sequence[str], **words: Any) -> WaitResult:
        wake: WaitResult = await self._storage.wait(queues, ids=ids, **words)
        [done] = await self._storage.get("q", ["done"])
        ends = {id: replace(done.outcome, result=b"2") for id in ids if done.outcome is not None}
        return replace(wake, outcomes=ends)


class MissingEnds(Wrapped):
    """A storage whose wake-ups leave out one of the ids that ended."""

    async def wait(self, queues: Sequence[str], *, ids: Sequence[str], **words: Any) -> WaitResult:
        wake: WaitResult = await self._storage.wait(queues, ids=ids, **words)
        return replace(wake, ended=None if wake.ended is None else wake.ended - {"failed"})


@asynccontextmanager
async def memory(wrap: type[Wrapped]) -> AsyncIterator[Any]:
    async with open_storage("memory:", "manual") as storage:
        yield wrap(storage)


@pytest.mark.parametrize("wrap", [Wrapped, ApproximateCounts])
async def test_exact_or_approximate_counts_pass(wrap: type[Wrapped]) -> None:
    async with memory(wrap) as storage:
        assert (1, []) == await large_counts(storage)


async def test_a_wrong_count_without_approximate_fails() -> None:
    async with memory(WrongCounts) as storage:
        assert ["10001 jobs wait; the count is 10000 and not marked approximate"] == (
            await large_counts(storage)
        )[1]


async def test_a_bounded_log_passes() -> None:
    async with memory(Wrapped) as storage:
        assert (1, []) == await bounded_log(storage)


@pytest.mark.parametrize("wrap", [UntrimmedLog, NoFellOff])
async def test_an_unbounded_log_or_a_missing_fell_off_fails(wrap: type[Wrapped]) -> None:
    async with memory(wrap) as storage:
        assert (await bounded_log(storage))[1]


@pytest.mark.parametrize("wrap", [Wrapped, NoParts])
async def test_complete_parts_pass(wrap: type[Wrapped]) -> None:
    async with memory(wrap) as storage:
        assert (6, []) == await check_partitioned_reads(storage)


@pytest.mark.parametrize(
    ("wrap", "why"),
    [
        (EndlessParts, "an export in 2 parts: .* ids are in two parts"),
        (GappedParts, "the listing waiting in 7 parts: .* are in no part"),
        (ShiftingParts, "an export in 7 parts: .* had other ids"),
        (TooManyParts, "an export in 7 parts: 7 cursors, expected at most 6"),
    ],
)
async def test_incomplete_parts_fail(wrap: type[Wrapped], why: str) -> None:
    async with memory(wrap) as storage:
        wrong = (await check_partitioned_reads(storage))[1]

    assert re.search(why, "\n".join(wrong)), wrong


async def test_a_storage_without_outcomes_in_wake_ups_passes() -> None:
    async with memory(Wrapped) as storage:
        assert (4, []) == await wake_up_outcomes(storage)


async def test_false_outcomes_in_wake_ups_fail() -> None:
    async with memory(FalseOutcomes) as storage:
        _, wrong = await wake_up_outcomes(storage)

    assert [f"a wake-up for {id}" for id in ("done", "failed", "gone", "back")] == [
        one.partition(" carried ")[0] for one in wrong
    ]


async def test_a_wake_up_that_leaves_out_an_end_fails() -> None:
    async with memory(MissingEnds) as storage:
        _, wrong = await wake_up_outcomes(storage)

    assert ["failed ended, and the wake-up names only ['done', 'gone']"] == wrong


# -- transactions ------------------------------------------------------------------------------------


class Connection:
    """A connection whose transactions do not include the calls of the storage."""

    async def commit(self) -> None:
        pass

    async def rollback(self) -> None:
        pass


class FalseTransactions(Wrapped):
    """A storage that claims transactions and writes outside of them."""

    capabilities = Capabilities(
        cross_queue=True,
        push_wakeups=True,
        manual_clock=True,
        transactions=True,
        limits=True,
        fair=True,
        output=True,
    )

    def in_transaction(self, _: Connection) -> Storage:
        return self._storage


@asynccontextmanager
async def open_false_transactions(location: str, clock: Clock) -> AsyncIterator[Any]:
    async with open_storage(f"memory:{location}", clock) as storage:
        yield FalseTransactions(storage)


@asynccontextmanager
async def connection(_: str) -> AsyncIterator[Connection]:
    yield Connection()


async def test_a_write_outside_the_transaction_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_false_transactions, "connect", connection, raising=False)

    assert await joins_transactions(Locations(open_false_transactions)) is False


async def test_a_storage_without_transactions_has_no_such_capability() -> None:
    assert await joins_transactions(Locations("memory:")) is False


class PollingClaims(Wrapped):
    """A storage that claims blocking claims and returns from them at once."""

    capabilities = Capabilities(cross_queue=True, push_wakeups=True, manual_clock=True, blocking_claim=True)

    async def claim_blocking(
        self, queue: str, lease: str, limit: int, *, claim_id: str, timeout: float
    ) -> ClaimResult:
        del claim_id, timeout
        return await self._storage.claim(queue, lease, limit)

    async def wake_claim(self, queue: str, claim_id: str) -> None: ...


@asynccontextmanager
async def open_polling_claims(location: str, clock: Clock) -> AsyncIterator[Any]:
    async with open_storage(f"memory:{location}", clock) as storage:
        yield PollingClaims(storage)


async def test_a_claim_that_returns_at_once_is_not_blocking() -> None:
    assert await blocks_claims(Locations(open_polling_claims)) is False


async def test_a_storage_without_blocking_claims_has_no_such_capability() -> None:
    assert await blocks_claims(Locations("memory:")) is False


def test_an_untested_claim_keeps_the_level_from_being_reached() -> None:
    """A capability that could not be tried counts as not tested."""
    report = certify(open_false_transactions, examples=1, seed=1)

    assert ("transactions",) == report.levels[0].unmet
    assert not report.failures
    assert not report.certified
    assert "connect(place)" in report.text()
