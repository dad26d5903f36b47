"""Bugs that show only in many entries or in small pages: one fixed history finds each of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from dibs.model.job import FAIL_SUFFIX, OutcomeRetention
from dibs.storage.indexed import whole_queue
from dibs.storage.indexed.event_log import EventLog
from dibs.storage.memory import MemoryStorage
from dibs.storage.offsets import LAST_EVENT, format_offset, parse_offset
from dibs_conformance.sequential.walkthrough import LARGE, read_log_in_pages
from dibs_conformance.verbs import queues
from tests.kit.play import play_fixed

Patch = pytest.MonkeyPatch
#: The most log entries that a planted prune removes in one call.
STEP = 1024
DEFAULT_LIMIT, LONG_LOG, _, RETENTION, QUEUE_NAMES, _ = LARGE


def changed_call(patch: Patch, verb: str, change: Callable[..., Any]) -> None:
    """Let `change(verb, storage, *args)` answer a verb of memory."""
    original = getattr(MemoryStorage, verb)

    async def mutant(self: MemoryStorage, *args: Any, **named: Any) -> Any:
        return await change(original, self, *args, **named)

    patch.setattr(MemoryStorage, verb, mutant)


@pytest.mark.parametrize("verb", ["list", "export", "events"])
def test_a_default_limit_above_100_is_found(verb: str, monkeypatch: Patch) -> None:
    def unlimited(original: Any, *args: Any, limit: int = 1000, **named: Any) -> Any:
        return original(*args, limit=limit, **named)

    changed_call(monkeypatch, verb, unlimited)

    failure = play_fixed(DEFAULT_LIMIT)

    assert failure is not None
    assert "100" in failure.why


def test_a_prune_of_one_step_of_a_long_log_is_found(monkeypatch: Patch) -> None:
    original = EventLog.excess
    monkeypatch.setattr(EventLog, "excess", lambda self, *args: original(self, *args)[:STEP])

    failure = play_fixed(LONG_LOG)

    assert failure is not None
    assert "the log still has an event" in failure.why


def test_a_prune_that_never_ends_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(whole_queue, "_prune_outcomes", lambda _, limit: limit)

    failure = play_fixed(LONG_LOG)

    assert failure is not None
    assert failure.law == "prune"


@pytest.mark.parametrize("by", [-1, 1])
def test_a_read_of_the_log_from_one_number_off_is_found(by: int, monkeypatch: Patch) -> None:
    """The planted bug repeats the first entry of a read, or leaves one entry out."""

    def shifted(original: Any, storage: Any, queue: str, *, after: str | None = None, **named: Any) -> Any:
        if after:
            number, index = parse_offset(after)
            after = format_offset(number + by, index) if index == LAST_EVENT else after
        return original(storage, queue, after=after, **named)

    changed_call(monkeypatch, "events", shifted)

    assert play_fixed(read_log_in_pages) is not None


def test_a_list_without_fail_queues_is_found(monkeypatch: Patch) -> None:
    async def without(original: Any, storage: Any) -> Any:
        return tuple(info for info in await original(storage) if not info.name.endswith(FAIL_SUFFIX))

    changed_call(monkeypatch, "queues", without)
    monkeypatch.setattr(queues, "LAG", 0.0)

    failure = play_fixed(QUEUE_NAMES)

    assert failure is not None
    assert "queues() does not name ['q!fail', 'r!fail']" in failure.why


@pytest.mark.parametrize("verb", ["amend", "configure"])
def test_a_merged_retention_is_found(verb: str, monkeypatch: Patch) -> None:
    def merged(original: Any, storage: Any, *args: Any, **named: Any) -> Any:
        *rest, patch = args
        if patch.retention == OutcomeRetention(failed=10):
            patch = replace(patch, retention=OutcomeRetention(completed=5_000, failed=10))
        return original(storage, *rest, patch, **named)

    changed_call(monkeypatch, verb, merged)

    failure = play_fixed(RETENTION)

    assert failure is not None
    assert failure.law == verb
