"""The benchmark of limits measures what it names, on a small size."""

from __future__ import annotations

import pytest
from benchmarks import limits

from dibs.storage.registry import open_storage

SMALL = limits.Size(backlog=300, keys=1_000)


@pytest.mark.parametrize("url", ["memory:", "file:NAME"])
async def test_the_jobs_of_the_full_key_stay_behind(url: str, tmp_path: object) -> None:
    async with open_storage(url.replace("NAME", str(tmp_path))) as storage:
        drain = await limits.prepare_drain(storage, SMALL, SMALL.backlog)
        await limits.drain_in_turns([drain])
        counts = (await storage.counts([limits.QUEUE]))[limits.QUEUE]

    assert drain.rate > 0
    assert counts.waiting >= SMALL.backlog
    assert counts.completed >= drain.jobs


async def test_two_drains_take_turns() -> None:
    async with open_storage("memory:") as first, open_storage("memory:") as second:
        drains = [await limits.prepare_drain(storage, SMALL, 0) for storage in (first, second)]
        await limits.drain_in_turns(drains)

    assert drains[0].settled == drains[1].settled >= drains[0].jobs


@pytest.mark.parametrize("per_key", [None, 1])
async def test_each_key_is_drained(per_key: int | None) -> None:
    async with open_storage("memory:") as storage:
        await limits.drain_keys(storage, SMALL, per_key)

        assert (await storage.counts([limits.QUEUE]))[limits.QUEUE].completed == SMALL.keys


def test_a_ratio_above_one_is_a_slower_drain() -> None:
    rounds = [{"alone": 100.0, "behind": 50.0, "no_limit": 100.0, "keys": 100.0}]

    assert (2.0, 1.0) == (
        limits.row("memory:", rounds)["behind_ratio"],
        limits.row("memory:", rounds)["keys_ratio"],
    )
