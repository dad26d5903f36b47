"""The report on an unfinished storage names the next verb and describes it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any, Self, cast

from dibs.model.job import EMPTY, Slot
from dibs.model.results import GrantResult
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Storage
from dibs_conformance import certify
from dibs_conformance.answer_types import VERBS


class Empty:
    """The first lines of a storage, without verbs."""

    url = "empty:"
    capabilities = Capabilities(manual_clock=True)
    durability = "none yet"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...


class Granting(Empty):
    """A storage with three verbs, of which one returns None."""

    async def grant(self, queues: Any, ttl: int, holder: str, *, now: int = 0) -> GrantResult:
        return GrantResult(lease="x", now=now, expires_at=now + ttl)

    async def get(self, queue: str, ids: list[str], *, now: int = 0) -> list[Slot]:
        return [EMPTY for _ in ids]

    async def enqueue(self, queue: str, requests: Any, *, now: int = 0) -> None: ...


def opened(kind: type[Empty]) -> AbstractAsyncContextManager[Storage]:
    return cast("AbstractAsyncContextManager[Storage]", kind())


def empty(location: str, clock: Clock) -> AbstractAsyncContextManager[Storage]:
    return opened(Empty)


def granting(location: str, clock: Clock) -> AbstractAsyncContextManager[Storage]:
    return opened(Granting)


def test_the_next_verb_is_reported() -> None:
    """The missing verb is the only failure. It follows the headline of the report."""
    report = certify(empty, examples=1, seed=1)
    [failure] = report.failures
    lines = report.text().splitlines()
    headline = next(n for n, line in enumerate(lines) if line.startswith("every verb is implemented"))

    assert lines[headline].startswith("every verb is implemented: Empty has no method grant().")
    assert all(line.startswith("    ") for line in lines[1:headline])
    assert "  manual_clock: claimed, could not be tried (grant() is missing)" in lines
    assert "every verb is implemented" == failure.law
    assert failure.why.startswith("Empty has no method grant(). Its task: Create a lease of `ttl` ms")
    assert "It returns GrantResult; see dibs.storage.protocol.Storage.grant." in failure.why
    assert "Also missing: enqueue, claim, settle" in failure.why


def test_the_result_type_of_a_verb_that_returns_none_is_reported() -> None:
    failure = certify(granting, examples=1, seed=1).failures[-1]

    assert failure.why.startswith("enqueue() returned None. Its task: Enqueue up to 1,000 requests.")
    assert "It returns Sequence[EnqueueResult]" in failure.why
    assert any(line.startswith("grant(") for line in failure.story)


def test_every_verb_of_the_protocol_is_known() -> None:
    assert 25 == len(VERBS)
    assert {"enqueue", "import_", "wait"} <= set(VERBS)
