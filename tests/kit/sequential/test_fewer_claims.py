"""A storage that lacks a capability and says so gets no history that needs it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import Any

import pytest
from attrs import evolve
from msgspec import UNSET

from dibs.errors import Refused
from dibs.model.requests import Complete, Fail, Settings, SettingsPatch, Settlement
from dibs.storage.protocol import Clock
from dibs.storage.registry import open_storage
from dibs_conformance.sequential.levels import run_examples
from dibs_conformance.sequential.limit_histories import walk_through_limits
from dibs_conformance.sequential.walkthrough import walk_through
from tests.kit.play import open_session
from tests.kit.sequential.test_probes import Wrapped

LIMITS = ("per_key", "rate", "key_rate", "max_waiting", "when_full")


class OneQueue(Wrapped):
    """A memory storage that refuses follow-ups for another queue."""

    @property
    def capabilities(self) -> Any:
        return evolve(self._storage.capabilities, cross_queue=False)

    async def settle(self, queue: str, settlements: list[Settlement], **when: Any) -> Any:
        for one in settlements:
            refuse_crossing(queue, one.action)
        return await self._storage.settle(queue, settlements, **when)

    async def settle_and_claim(
        self, queue: str, settlements: list[Settlement], *args: Any, **when: Any
    ) -> Any:
        for one in settlements:
            refuse_crossing(queue, one.action)
        return await self._storage.settle_and_claim(queue, settlements, *args, **when)

    async def finish(self, queue: str, id: str, end: Any, *args: Any, **when: Any) -> Any:
        refuse_crossing(queue, end)
        return await self._storage.finish(queue, id, end, *args, **when)


def refuse_crossing(queue: str, action: Any) -> None:
    if isinstance(action, Complete | Fail) and any(item.queue != queue for item in action.then):
        raise Refused("a follow-up is for another queue", field="then")


class NoLimits(Wrapped):
    """A memory storage that refuses the settings of limits."""

    @property
    def capabilities(self) -> Any:
        return evolve(self._storage.capabilities, limits=False)

    async def configure(self, queue: str, patch: SettingsPatch, **when: Any) -> Settings:
        if any(getattr(patch, name) not in (UNSET, None, "refuse") for name in LIMITS):
            raise Refused("this storage has no limits", field="per_key")
        return await self._storage.configure(queue, patch, **when)


@pytest.mark.parametrize("kind", [OneQueue, NoLimits])
def test_no_history_asks_for_what_a_storage_does_not_claim(kind: type[Wrapped]) -> None:
    @asynccontextmanager
    async def open_less(location: str, clock: Clock) -> Any:
        async with open_storage(f"memory:{location}", clock) as storage:
            yield kind(storage)

    with open_session(open_less) as session:
        session.cross_queue, session.limits = kind is not OneQueue, kind is not NoLimits
        walk_through(session)
        walk_through_limits(session)
        assert run_examples(session, first_seed=2, examples=20, budget=60, steps=30) is None
