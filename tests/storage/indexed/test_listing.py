"""Listings of a changing queue: an id that stays appears exactly once."""

from __future__ import annotations

from itertools import islice

from hypothesis import given, settings
from hypothesis import strategies as st

from dibs.storage.indexed.orders import SortedIds

names = st.sampled_from([f"{i:02}" for i in range(12)] + ["é", "../x"])
#: The ids added and removed between two pages.
changes = st.tuples(st.lists(names, max_size=4), st.lists(names, max_size=4))


def listed(
    ids: dict[str, None], listing: SortedIds, size: int, between: list[tuple[list[str], list[str]]]
) -> list[str]:
    """Page through the listing, with changes between pages; the cursor is the last id of a page."""
    found: list[str] = []
    after: str | None = None
    turns = iter(between)
    while page := list(islice(listing.ids_after(after), size)):
        found += page
        after = page[-1]
        come, go = next(turns, ([], []))
        change(ids, listing, come, go)
    return found


def change(ids: dict[str, None], listing: SortedIds, come: list[str], go: list[str]) -> None:
    for id in go:
        ids.pop(id, None)
    for id in come:
        if id not in ids:
            ids[id] = None
            listing.add(id)


@settings(max_examples=200)
@given(st.sets(names), st.integers(1, 4), st.lists(changes, max_size=8), st.booleans())
def test_an_id_that_stays_is_listed_exactly_once(
    start: set[str],
    size: int,
    between: list[tuple[list[str], list[str]]],
    warm: bool,  # noqa: FBT001
) -> None:
    """No id appears twice, also if it was removed and added again."""
    ids = dict.fromkeys(start)
    listing = SortedIds(ids)
    if warm:
        list(listing.ids_after(None))
    stayed = start - {id for _, go in between for id in go}
    found = listed(ids, listing, size, between)

    assert stayed <= set(found)
    assert len(found) == len(set(found))
    assert sorted(found) == found


def test_removed_ids_are_deleted_from_the_listing() -> None:
    """A queue that uses each id once does not keep the old ids, with or without listings."""
    ids: dict[str, None] = {}
    listing = SortedIds(ids)
    list(listing.ids_after(None))
    for number in range(10_000):
        change(ids, listing, [f"{number:05}"], [f"{number - 1:05}"])
        assert 2000 > len(listing._sorted or ())

    assert ["09999"] == list(listing.ids_after(None))
