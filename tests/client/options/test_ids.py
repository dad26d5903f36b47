"""Ids: generated ones sort by time, content ids are the same for the same data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from dibs.client.options import ids
from dibs.client.options.ids import content_id, new_id


def test_generated_ids_grow() -> None:
    made = [new_id() for _ in range(20_000)]

    assert sorted(set(made)) == made


def test_a_burst_borrows_from_the_next_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.client.options.ids.time.time_ns", lambda: 5_000_000_000)
    clock = ids._Clock()

    made = [clock.next() for _ in range(2 * ids.ROOM + 1)]

    assert sorted(set(made)) == made
    assert [ids.ROOM, ids.ROOM, 1] == [*Counter(id[:10] for id in made).values()]


def test_generated_ids_grow_while_the_clock_stands_or_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ids._Clock()
    times = iter([5_000_000_000, 5_000_000_000, 4_000_000_000, 6_000_000_000])
    monkeypatch.setattr("dibs.client.options.ids.time.time_ns", lambda: next(times))

    made = [clock.next() for _ in range(4)]

    assert sorted(made) == made


def test_generated_ids_are_ulids(monkeypatch: pytest.MonkeyPatch) -> None:
    """26 letters, the first ten of them the ms since 1970 (an example of the ULID specification)."""
    monkeypatch.setattr("dibs.client.options.ids.time.time_ns", lambda: 1_469_918_176_385 * 10**6)

    made = ids._Clock().next()

    assert made.startswith("01ARYZ6S41")
    assert len(made) == 26
    assert set(made) <= {*ids.LETTERS}


def test_threads_never_get_the_same_id() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_id(), range(4_000)))

    assert len(set(made)) == len(made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_forks_draw_their_own_chance() -> None:
    """In a program of its own: a fork of the test run, with all its threads, may meet a lock. All in a ms."""
    code = (
        "import os, time; time.time_ns = lambda: 5 * 10**9;"
        "from dibs.client.options.ids import new_id; new_id(); child = os.fork();"
        "os.write(1, new_id()[12:].encode() + b' '); child and os.wait()"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert 2 == len(set(told.split()))


def test_equal_data_has_one_content_id() -> None:
    assert content_id({"a": 1, "b": [2]}) == content_id({"b": [2], "a": 1})
    assert content_id({"a": 1}) != content_id({"a": 2})
