"""The calls of a worker and a caller for one job: enqueue, claim, settle and both waits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from dibs.model.job import NewJob
from dibs.model.requests import Complete, EnqueueRequest, Settlement
from dibs.storage.protocol import Storage

#: A timeout in s beyond that of a slow machine: a wait that reaches it fails the test.
PATIENCE = 60.0


async def exchange(storage: Storage, lease: str, token: str, id: str) -> str:
    """Run one job to its end, between a waiting worker and a waiting caller.

    Return the token of the last claim of the worker, for its next wait.
    """
    idle = asyncio.create_task(storage.wait(["q"], since={"q": token}, timeout=PATIENCE))
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id))])
    over = asyncio.create_task(storage.wait(["q"], for_="ids", ids=[id], timeout=PATIENCE))
    # The caller sleeps before the worker begins.
    await asyncio.sleep(0)
    assert (await idle).woken
    (job,) = (await storage.claim("q", lease, 10)).jobs
    assert job.id == id
    assert job.run is not None
    done = Settlement(id=id, fence=job.run.fence, action=Complete(result=b"1"))
    turned = await storage.settle_and_claim("q", [done], lease, 10)
    assert (await over).woken
    (slot,) = await storage.get("q", [id])
    assert slot.outcome is not None
    return turned.claim.token


async def begun(storage: Storage) -> tuple[str, str]:
    """Grant a lease, wait once for work and once for an end, and claim. Return the lease and the token."""
    lease = (await storage.grant(["q"], 600_000, "worker")).lease
    await storage.wait(["q"], timeout=0.01)
    await storage.wait(["q"], for_="ids", ids=["none"], timeout=0.01)
    return lease, (await storage.claim("q", lease, 10)).token


@contextmanager
def counted(patch: pytest.MonkeyPatch, owner: Any, name: str) -> Iterator[list[Mapping[str, Any]]]:
    """Yield a list that records the calls of a coroutine method."""
    calls: list[Mapping[str, Any]] = []
    plain = getattr(owner, name)

    async def noted(self: Any, *words: Any, **named: Any) -> Any:
        calls.append({"words": words, **named})
        return await plain(self, *words, **named)

    with patch.context() as patched:
        patched.setattr(owner, name, noted)
        yield calls
