"""The log of a queue: offsets grow, pages are complete, and a reader learns of trimmed events."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import Refused
from dibs.model.events import LogEvent
from dibs.storage.indexed import event_log
from dibs.storage.indexed.event_log import EventLog, pack_entry
from dibs.storage.protocol import LATEST


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


@given(steps, steps, limits, st.data())
def test_a_page_after_any_offset_has_exactly_the_later_events(
    counts: list[int], more: list[int], limit: int, draw: st.DataObject
) -> None:
    """No event appears at or before an offset that a reader has received."""
    log = log_of(counts)
    _, offsets, end = read(log, None, 100)
    place = draw.draw(st.integers(0, len(offsets)))
    tell(log, more, sum(counts))

    after = offsets[place - 1] if place else None
    assert list(range(place, sum(counts) + sum(more))) == read(log, after, limit)[0]
    assert list(range(sum(counts), sum(counts) + sum(more))) == read(log, end, limit)[0]


@given(steps, steps)
def test_latest_is_the_end_of_the_log(counts: list[int], more: list[int]) -> None:
    log = log_of(counts)
    page = log.page(LATEST, 10)
    tell(log, more, sum(counts))

    assert ((), False, log_of(counts).end) == (page.events, page.fell_off, page.offset)
    assert list(range(sum(counts), sum(counts) + sum(more))) == read(log, page.offset, 2)[0]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.data())
def test_fell_off_is_true_exactly_if_the_reader_missed_events(counts: list[int], draw: st.DataObject) -> None:
    """This includes a reader of a part of an entry that was trimmed."""
    log = log_of(counts)
    _, offsets, _ = read(log, None, 100)
    seen = draw.draw(st.integers(1, len(offsets)))
    kept = draw.draw(st.integers(0, len(counts)))
    if kept < len(counts):
        log.trim([*log][len(counts) - kept - 1].number)
    page = log.page(offsets[seen - 1], 100)

    assert (seen < sum(counts[: len(counts) - kept])) is page.fell_off
    assert list(range(max(seen, sum(counts[: len(counts) - kept])), sum(counts))) == [
        int(one.id) for _, one in page.events
    ]


@given(st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_a_reader_at_the_end_stays_at_the_end_when_the_log_is_trimmed(counts: list[int]) -> None:
    """Its offset is the end before and after a trim; otherwise its waits would end again and again."""
    log = log_of(counts)
    at = read(log, None, 100)[2]
    assert log.end == at

    log.trim([*log][-1].number)

    assert log.end == at
    assert ((), False, at) == (log.page(at, 1).events, log.page(at, 1).fell_off, log.page(at, 1).offset)


def test_a_reader_of_an_empty_log_falls_off_after_a_trim() -> None:
    log = EventLog()
    page = log.page(None, 10)
    tell(log, [1, 1])
    log.trim(next(iter(log)).number)

    assert "" == page.offset
    assert log.page(page.offset, 10).fell_off
    assert not log.page(None, 10).fell_off


def test_an_end_on_an_empty_page_is_never_behind_what_was_asked_for() -> None:
    """After a trim of all entries, the start of the log is its end."""
    log = log_of([2, 2])
    log.trim([*log][-1].number)
    page = log.page(None, 10)

    assert (log.end, False) == (page.offset, False)
    assert not log.page(page.offset, 10).fell_off


@pytest.mark.parametrize(
    "after", ["x", "0", "0.0", "-1.000000", "0x0000000000000a.000000", "1" * 65, " ", "ü"]
)
def test_what_is_no_offset_is_refused(after: str) -> None:
    """The log never returned such an offset."""
    with pytest.raises(Refused) as caught:
        log_of([1]).page(after, 1)

    assert "after" == caught.value.field


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
