"""Tests that this version of dibs works with what earlier versions stored.

Each folder here is a set of places that tools/write_stored_places.py wrote with the version of its time. A
failure means that a change of a format, a record or a migration cannot read the data of users.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, JobPatch, SettingsPatch, Settlement
from dibs.storage import registry
from dibs.storage.protocol import Storage
from tests.source import PROJECT
from tests.storage.stored_places import stored_app
from tests.storage.stored_places.archives import NAME, PLACES, restore
from tests.storage.stored_places.contents import contents, events
from tests.storage.stored_places.stored_app import app
from tests.storage.stored_places.story import HOUR, JOBS, LIMITED, ODD, PAUSED

STORED = sorted(
    path.relative_to(Path(__file__).parent).with_suffix("").as_posix()
    for path in Path(__file__).parent.glob("*/*.gz")
)


class Place:
    """A restored place and the recorded answers of the version that wrote it."""

    def __init__(self, url: str, recorded: dict[str, Any]) -> None:
        self.url = url
        self.now: int = recorded["now"]
        self.leases: dict[str, str] = recorded["leases"]
        self.contents: dict[str, Any] = recorded["contents"]

    def opened(self) -> Storage:
        return registry.open_storage(self.url, clock="manual")

    def current(self, id: str) -> dict[str, Any]:
        current: dict[str, Any] = self.contents[JOBS]["slots"][id]["current"]
        return current

    def runs_under(self, lease: str) -> list[str]:
        slots = self.contents[JOBS]["slots"].items()
        runs = {id: slot.get("current", {}).get("run", {}) for id, slot in slots}
        return [id for id, run in runs.items() if run.get("lease") == self.leases[lease]]


@pytest.fixture(params=STORED)
async def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Place]:
    path = Path(__file__).parent / request.param
    scheme = path.name.partition("-")[0]
    monkeypatch.syspath_prepend(PROJECT / "examples/dibs-sqlite/src")
    monkeypatch.setitem(registry.BUILT_IN, "sqlite", "dibs_sqlite:open_url")
    match scheme:
        case "redis":
            url = f"{request.getfixturevalue('redis_server').url}?prefix={NAME}"
        case "postgresql":
            url = f"{request.getfixturevalue('postgres_server').url}?schema={NAME}"
        case _:
            url = f"{scheme}:{tmp_path}/jobs"
    restore(path.with_suffix(".gz").read_bytes(), url)
    yield Place(url, json.loads(path.with_suffix(".json").read_text("utf-8")))
    await registry.remove_storage(url)


def test_every_storage_has_a_place() -> None:
    sets = {place.partition("/")[0] for place in STORED}

    assert sets
    assert {f"{name}/{place}" for name in sets for place in PLACES} <= set(STORED)


async def test_the_contents_are_those_that_were_stored(place: Place) -> None:
    """Queues, settings, counts, states, slots and events are equal, also after the place was opened twice."""
    for _ in range(2):
        async with place.opened() as storage:
            assert place.contents == await contents(storage, place.now)


async def test_readers_of_the_log_continue_at_their_offset(place: Place) -> None:
    stored = place.contents[JOBS]["events"]
    async with place.opened() as storage:
        for index in (0, len(stored) // 2, len(stored) - 1):
            assert stored[index + 1 :] == await events(storage, JOBS, stored[index][0], place.now)
        assert (await storage.events(JOBS, after="", now=place.now)).fell_off
        assert not (await storage.events(JOBS, after=stored[0][0], now=place.now)).fell_off
        await storage.enqueue(JOBS, [EnqueueRequest(job=NewJob(id="new"))], now=place.now)
        [[offset, event]] = await events(storage, JOBS, place.contents[JOBS]["end"], place.now)

    assert offset > stored[-1][0]
    assert ("queued", "new") == (event["kind"], event["id"])


async def test_a_known_request_key_repeats_its_result(place: Place) -> None:
    merged = place.current("merged")
    async with place.opened() as storage:
        again = EnqueueRequest(job=NewJob(id="other"), request_key="merge-2")
        [result] = await storage.enqueue(JOBS, [again], now=place.now)

        assert (True, "merged", "updated", "waiting") == (
            result.repeated,
            result.id,
            result.status,
            result.found,
        )
        assert (merged["first"], merged["revision"]) == (result.first, result.revision)
        assert [None] == [slot.current for slot in await storage.get(JOBS, ["other"], now=place.now)]


async def test_the_holders_of_runs_go_on(place: Place) -> None:
    """Workers renew, report and settle under their leases, and end runs that were handed off."""
    live, fence = place.leases["live"], {id: place.current(id)["run"]["fence"] for id in ("active", "lost")}
    revision = place.current("handed-off")["revision"]
    done, now = Complete(result=b"2"), place.now
    async with place.opened() as storage:
        renewed = (await storage.renew([JOBS], live, 60_000, now=now))[JOBS]
        expired = (await storage.renew([JOBS], place.leases["expired"], 60_000, now=now))[JOBS]
        reported = await storage.report(JOBS, "active", fence["active"], b"1", now=now)
        settlement = Settlement(id="active", fence=fence["active"], action=done)
        results = [(await storage.settle(JOBS, [settlement], now=now))[0].status for _ in range(2)]
        finished = await storage.finish(JOBS, "handed-off", done, revision, now=now)
        reaped = {(job.id, job.kind) for job in await storage.reap(JOBS, 100, now=now + 2 * HOUR)}
        late = Settlement(id="lost", fence=fence["lost"], action=done)
        [lost] = await storage.settle(JOBS, [late], now=now)
        [slot] = await storage.get(JOBS, ["handed-off"], now=now)

    assert (True, ("cancel-requested",), False) == (renewed.alive, renewed.cancel_requested, expired.alive)
    assert ("reported", ["done", "done"], "done") == (reported, results, finished)
    dropped = place.runs_under("dropped")
    assert 1 == len(dropped)
    assert {("lost", "stalled"), ("lost-blocked", "stalled"), (dropped[0], "released")} == reaped
    assert "lost" == lost.status
    assert slot.current is not None
    assert slot.current.run is None


async def test_the_claims_keep_the_stored_order_and_limits(place: Place) -> None:
    async with place.opened() as storage:
        lease = (await storage.grant([JOBS, LIMITED, PAUSED], 60_000, "new", now=place.now)).lease
        claimed = [job.id for job in (await storage.claim(JOBS, lease, 100, now=place.now)).jobs]
        kept = [(await storage.claim(queue, lease, 9, now=place.now)).jobs for queue in (LIMITED, PAUSED)]
        [failed] = await storage.retry_failed(JOBS, ["failed"], now=place.now)

    slots = place.contents[JOBS]["slots"]
    due = [slot["current"] for slot in slots.values() if "run" not in slot.get("current", {"run": None})]
    due = [job for job in due if job["run_at"] <= place.now]
    due.sort(key=lambda job: (-job["data"].get("priority", 0), job["run_at"], job["seq"]))
    assert [job["id"] for job in due] == claimed
    assert [(), ()] == kept
    assert "queued" == failed


async def test_a_worker_drains_the_place(place: Place) -> None:
    """Under the clock of the storage, the stored leases expire, so every job runs, with its arguments."""
    stored_app.calls.clear()
    stored_app.failures.clear()
    expected = await prepare_drain(place)
    with app.override_storage(registry.open_storage(place.url)):
        async with app, asyncio.timeout(120):
            await app.work(until="empty")
            counts = await app.queue(JOBS).counts()

    assert [("failed-handled", "no such städt")] == stored_app.failures
    assert expected <= set(stored_app.calls)
    assert (0, 0) == (counts.waiting, counts.active)


async def prepare_drain(place: Place) -> set[tuple[str, str]]:
    """Resume the paused queue, finish the handed-off runs and make waiting jobs due.

    Return the queue and the id of each job that a worker must run.
    """
    found = set()
    async with registry.open_storage(place.url) as storage:
        await storage.configure(PAUSED, SettingsPatch(paused=False))
        for id in ("handed-off", "handed-off-alone"):
            assert "done" == await storage.finish(JOBS, id, Complete(), place.current(id)["revision"])
        for queue in (JOBS, LIMITED, ODD, PAUSED):
            for id, slot in place.contents[queue]["slots"].items():
                if "current" not in slot or id in ("handed-off-alone", "cancel-requested"):
                    continue
                found.add((queue, id))
                if "run" not in slot["current"]:
                    assert "amended" == await storage.amend(queue, id, JobPatch(run_at=place.now))
    return found
