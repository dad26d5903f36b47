"""Storages with planted bugs in the verbs for many queues, which the probes must find."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from attrs import evolve
from msgspec.structs import replace

from dibs.model.requests import QueueStep
from dibs.model.results import SettleAndClaimResult
from dibs.storage import checks
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock
from dibs.storage.registry import open_storage
from dibs_conformance.report import LawFailure
from dibs_conformance.sequential import capabilities
from dibs_conformance.sequential.bad_calls import check_bad_calls
from dibs_conformance.sequential.capabilities import serves_many_queues
from dibs_conformance.sequential.walkthrough import serve_each_state, serve_wide
from dibs_conformance.servers import RedisServer
from dibs_conformance.target import Locations
from tests.kit.mutants.lua import planted
from tests.kit.play import play_fixed
from tests.kit.sequential.test_probes import Wrapped

Steps = Sequence[QueueStep]


class Serving(Wrapped):
    """A memory storage with a correct `serve`: one settle_and_claim for each step."""

    @property
    def capabilities(self) -> Capabilities:
        return evolve(self._storage.capabilities, many_queues=True)

    async def serve(self, steps: Steps, lease: str, *, now: int | None = None) -> list[SettleAndClaimResult]:
        self.check(steps, lease)
        return [await self.one(step, lease, now) for step in steps]

    def check(self, steps: Steps, lease: str) -> None:
        checks.check_serve(steps, lease)

    async def one(self, step: QueueStep, lease: str, now: int | None) -> SettleAndClaimResult:
        if step.limit:
            answer: SettleAndClaimResult = await self._storage.settle_and_claim(
                step.queue, step.settlements, lease, step.limit, now=now
            )
            return answer
        settled = await self._storage.settle(step.queue, step.settlements, now=now)
        at = (await self._storage.grant(["clock"], 1, "now", now=now)).now
        claim = replace(await self._storage.claim("clock", "", 1, now=now), now=at, token="", lost=False)
        return SettleAndClaimResult(tuple(settled), claim)


class WithoutChecks(Serving):
    def check(self, steps: Steps, lease: str) -> None: ...


class ClaimsAtLimitZero(Serving):
    async def one(self, step: QueueStep, lease: str, now: int | None) -> SettleAndClaimResult:
        return await super().one(replace(step, limit=step.limit or 1), lease, now)


class InReverse(Serving):
    async def serve(self, steps: Steps, lease: str, *, now: int | None = None) -> list[SettleAndClaimResult]:
        return (await super().serve(steps, lease, now=now))[::-1]


class LosesAllQueues(Serving):
    """A storage that claims from no later queue once the lease is lost in one queue."""

    async def serve(self, steps: Steps, lease: str, *, now: int | None = None) -> list[SettleAndClaimResult]:
        self.check(steps, lease)
        answers = []
        for step in steps:
            answers.append(await self.one(step, lease, now))
            if answers[-1].claim.lost:
                lease = "lost"
        return answers


class Serves200(Serving):
    """A storage that makes only the claims of the first 200 steps."""

    async def serve(self, steps: Steps, lease: str, *, now: int | None = None) -> list[SettleAndClaimResult]:
        self.check(steps, lease)
        served = [*steps[:200], *(replace(step, limit=0) for step in steps[200:])]
        return [await self.one(step, lease, now) for step in served]


class Claims1000(Serving):
    async def one(self, step: QueueStep, lease: str, now: int | None) -> SettleAndClaimResult:
        return await super().one(replace(step, limit=min(step.limit, 1000)), lease, now)


BUGS = (ClaimsAtLimitZero, InReverse, LosesAllQueues, Serves200, Claims1000)


def opening(kind: type[Serving]) -> Any:
    @asynccontextmanager
    async def open_it(location: str, clock: Clock) -> Any:
        async with open_storage(f"memory:{location}", clock) as storage:
            yield kind(storage)

    return open_it


def failures(kind: type[Serving]) -> list[LawFailure]:
    found = (play_fixed(history, opening(kind)) for history in (serve_each_state, serve_wide))
    return [failure for failure in found if failure is not None]


def test_a_correct_serve_passes() -> None:
    assert [] == failures(Serving)
    assert asyncio.run(serves_many_queues(Locations(opening(Serving)))) is True


@pytest.mark.parametrize("kind", BUGS)
def test_a_bug_of_serve_is_found(kind: type[Serving]) -> None:
    assert failures(kind)


@pytest.mark.parametrize("kind", [Serving, WithoutChecks])
async def test_bad_steps_that_are_accepted_are_found(kind: type[Serving]) -> None:
    locations = Locations(opening(kind))
    async with locations.open(locations.new(), "manual") as storage:
        _, wrong = await check_bad_calls(storage)

    found = [name for name in ("no step", "two steps of a queue", "1,001 steps") if name in "\n".join(wrong)]
    assert found == ([] if kind is Serving else ["no step", "two steps of a queue", "1,001 steps"])


async def test_a_storage_without_the_verb_has_no_such_capability() -> None:
    assert await serves_many_queues(Locations("memory:")) is False


#: Bugs of blocking claims of several queues: the file of Lua, the line, and its replacement.
BLOCKING_BUGS = {
    "a change releases no group": (
        "include/commit",
        "    if groups then release_groups(groups, queue.now, queue.prefix) end\n",
        "",
    ),
    "wake_claim knows one queue": ("wake_claim", ", ARGV[2]}", "}"),
    "each queue has the limit": ("claim_any", "left = left - #claimed[5] / 2", "left = left - 0"),
    "changes beyond the limit are lost": (
        "claim_any",
        "elseif left == 0 then\n    release_group(group, prefix)",
        "elseif left == 0 then",
    ),
    "a full claim releases no other": (
        "include/commit",
        "queue.work_changed or (queue.limit_reached and has_waiting(queue))",
        "queue.work_changed",
    ),
}


@pytest.mark.parametrize("bug", BLOCKING_BUGS)
async def test_a_bug_of_blocking_claims_of_many_queues_is_found(
    bug: str, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(*BLOCKING_BUGS[bug])(monkeypatch)
    monkeypatch.setattr(capabilities, "BLOCKING_SECONDS", 2.0)
    locations = Locations(redis_server.url)
    try:
        assert await serves_many_queues(locations) is False
    finally:
        await locations.remove()
