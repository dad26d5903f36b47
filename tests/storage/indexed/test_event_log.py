"""The log of a queue: offsets grow, pages are complete, and a reader learns of trimmed events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.model.events import LogEvent
from dibs.storage.indexed import event_log
from dibs.storage.indexed.event_log import EventLog, pack_entry


@pytest.fixture(autouse=True, params=[1, 2, 512], scope="module")
def packed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compress entries one by one, in pairs, and not at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(event_log, "PACKED", request.param)
        yield


#: The number of events of each step.
steps = st.lists(st.integers(1, 3), max_size=8)
limits = st.integers(1, 4)


def event(name: int) -> LogEvent:
    return LogEvent(kind="queued", id=str(name), at=0)


def log_of(counts: list[int], first: int = 0) -> EventLog:
    log = EventLog()
    tell(log, counts, first)
    return log


def tell(log: EventLog, counts: list[int], first: int = 0) -> None:
    """Append a step for each count, with events numbered from `first`."""
    number = max([log.trimmed, *(entry.number for entry in log)])
    for count in counts:
        number += 7
        log.append(pack_entry(number, number, [event(first + i) for i in range(count)]))
        first += count


def read(log: EventLog, after: str | None, limit: int) -> tuple[list[int], list[str], str | None]:
    """Page to the end; return the events, their offsets, and the offset of the next page."""
    told: list[int] = []
    offsets: list[str] = []
    while events := (page := log.page(after, limit)).events:
        assert limit >= len(events)
        told += [int(one.id) for _, one in events]
        offsets += [offset for offset, _ in events]
        after = page.offset
    return told, offsets, page.offset


@given(steps, limits)
def test_pages_of_any_size_have_each_event_once_in_order(counts: list[int], limit: int) -> None:
    told, offsets, _ = read(log_of(counts), None, limit)

    assert list(range(sum(counts))) == told
    assert sorted(set(offsets)) == offsets
    assert all(len(offset) <= 64 for offset in offsets)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_a_reader_at_the_end_stays_at_the_end_when_the_log_is_trimmed(counts: list[int]) -> None:
    """Its offset is the end before and after a trim; otherwise its waits would end again and again."""
    log = log_of(counts)
    at = read(log, None, 100)[2]
    assert log.end == at

    log.trim([*log][-1].number)

    assert log.end == at
    assert ((), False, at) == (log.page(at, 1).events, log.page(at, 1).fell_off, log.page(at, 1).offset)


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.integers(0, 400), st.integers(0, 60))
def test_what_is_in_excess_is_what_is_too_old_or_too_much(counts: list[int], most: int, oldest: int) -> None:
    log = log_of(counts)
    entries, excess = [*log], log.excess(oldest, most)
    left = entries[len(excess) :]

    assert entries == [*excess, *left]
    assert all(entry.at >= oldest for entry in left)
    assert sum(len(entry.packed) for entry in left) <= most or not left
    assert not excess or (
        excess[-1].at < oldest or sum(len(entry.packed) for entry in (excess[-1], *left)) > most
    )


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.data())
def test_restoring_undoes_a_trim(counts: list[int], draw: st.DataObject) -> None:
    log = log_of(counts)
    before = ([*log], log.size, log.trimmed, log.end)
    through = draw.draw(st.sampled_from([*log])).number
    log.restore(log.trim(through), 0)

    assert before == ([*log], log.size, log.trimmed, log.end)


@given(st.integers(1, 12), st.integers(0, 12), st.integers(1, 3))
def test_dropping_the_last_entries_undoes_their_step(count: int, trimmed: int, dropped: int) -> None:
    """Also after a trim of all entries was undone, which puts the last ones among the oldest."""
    log = log_of([1] * count)
    before = ([*log], log.size, log.end)
    tell(log, [1] * dropped, count)
    log.restore(log.trim(7 * trimmed), 0)
    log.drop_last(dropped)

    assert before == ([*log], log.size, log.end)
