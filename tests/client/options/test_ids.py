"""Generated ids sort by time; content ids are equal for equal data."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from dibs.client.options import arguments
from dibs.client.options.arguments import content_id, new_id


def test_generated_ids_grow() -> None:
    made = [new_id() for _ in range(20_000)]

    assert sorted(set(made)) == made


def test_a_burst_borrows_from_the_next_ms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dibs.client.options.arguments.time.time_ns", lambda: 5_000_000_000)
    generator = arguments.IdGenerator()

    made = [generator.next() for _ in range(2 * arguments.MAX_IDS_PER_MS + 1)]

    assert sorted(set(made)) == made
    most = arguments.MAX_IDS_PER_MS
    assert [most, most, 1] == [*Counter(id[:10] for id in made).values()]


def test_generated_ids_grow_while_the_clock_stands_or_steps_back(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = arguments.IdGenerator()
    times = iter([5_000_000_000, 5_000_000_000, 4_000_000_000, 6_000_000_000])
    monkeypatch.setattr("dibs.client.options.arguments.time.time_ns", lambda: next(times))

    made = [generator.next() for _ in range(4)]

    assert sorted(made) == made


def test_generated_ids_are_ulids(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ULID has 26 characters; the first ten encode ms since 1970 (example of the ULID specification)."""
    monkeypatch.setattr("dibs.client.options.arguments.time.time_ns", lambda: 1_469_918_176_385 * 10**6)

    made = arguments.IdGenerator().next()

    assert made.startswith("01ARYZ6S41")
    assert len(made) == 26
    assert set(made) <= {*arguments.BASE32_DIGITS}


def test_threads_never_get_the_same_id() -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: new_id(), range(4_000)))

    assert len(set(made)) == len(made)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork does not exist on this platform")
def test_a_forked_process_draws_its_own_random_bits() -> None:
    """Parent and child generate an id in the same ms. A new process forks: pytest has other threads."""
    code = (
        "import os, time; time.time_ns = lambda: 5 * 10**9;"
        "from dibs.client.options.arguments import new_id; new_id(); child = os.fork();"
        "os.write(1, new_id()[12:].encode() + b' '); child and os.wait()"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert 2 == len(set(output.split()))


def test_equal_data_has_one_content_id() -> None:
    assert content_id({"a": 1, "b": [2]}) == content_id({"b": [2], "a": 1})
    assert content_id({"a": 1}) != content_id({"a": 2})
