"""The context variables of runs: those of the lifespan, and never those of another run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar

import pytest

from dibs.app import Dibs
from dibs.client.calls.current_job import CURRENT_JOB, CurrentJob
from dibs.client.calls.handler import Ending
from dibs.testing import using
from dibs.worker import run
from tests.worker.jobs import add, ids, outcome, put

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")
SEEN: list[str] = []


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    TENANT.set("lifespan")
    yield


def handler() -> str:
    found = TENANT.get()
    TENANT.set("another run")
    return found


async def async_handler() -> str:
    return handler()


@contextmanager
def middleware(job: CurrentJob) -> Iterator[None]:
    SEEN.append(TENANT.get())
    yield


def hook(ending: Ending) -> None:
    ending.result = [ending.result, TENANT.get(), CURRENT_JOB.get(None)]


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    SEEN.clear()


@pytest.mark.parametrize("kind", ["async", "def"])
@pytest.mark.parametrize("hooked", [False, True])
async def test_a_run_sees_the_context_variables_of_the_lifespan_only(
    app: Dibs, kind: str, *, hooked: bool
) -> None:
    app.lifespan_function = lifespan
    add(app, "q", async_handler if kind == "async" else handler, after=hook if hooked else None, size=100)
    app.middleware(run=middleware)
    await put(app, "q", *ids(20))
    await run(app, until="empty")

    expected = b'["lifespan","lifespan",null]' if hooked else b'"lifespan"'
    assert {expected} == {(await outcome(app, "q", id)).result for id in ids(20)}
    assert ["lifespan"] * 20 == SEEN


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_rehearsed_run_sees_the_same(kind: str) -> None:
    app = Dibs("memory:")
    app.lifespan_function = lifespan
    add(app, "q", async_handler if kind == "async" else handler)
    async with using(app) as rehearsal:
        await put(app, "q", "a", "b")
        await rehearsal.run_due()

        found = [(await outcome(app, "q", id)).result for id in "ab"]

    assert [b'"lifespan"'] * 2 == found
