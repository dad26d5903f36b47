"""The call of a handler by an executor, with serdes, middleware and threads that break."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import attrs
import pytest

from dibs.app import Dibs
from dibs.client.options.serde import JSON
from dibs.worker import run
from dibs.worker.execution.executor import HandlerThreads
from tests.worker.jobs import add, event_kinds, outcome, put


class Serde:
    """A serde whose `encode` returns or raises `encoded`."""

    name = "strange"

    def __init__(self, encoded: Any) -> None:
        self.encoded = encoded

    def encode(self, value: Any) -> Any:
        if isinstance(self.encoded, BaseException):
            raise self.encoded
        return self.encoded

    def decode(self, raw: bytes, type: Any = Any) -> Any:
        return JSON.decode(raw, type)


@pytest.mark.parametrize("kind", ["async", "def"])
@pytest.mark.parametrize(
    ("encoded", "reason"),
    [(SystemExit(1), "1"), (KeyboardInterrupt(), "KeyboardInterrupt"), ("text", "returned str, not bytes")],
)
async def test_a_serde_that_breaks_fails_the_run(app: Dibs, kind: str, encoded: Any, reason: str) -> None:
    async def async_handler() -> None: ...

    add(app, "q", async_handler if kind == "async" else lambda: None)
    app.handlers["q"] = attrs.evolve(app.handlers["q"], serde=Serde(encoded))
    await put(app, "q", "a")
    await run(app, until="empty")

    error = (await outcome(app, "q", "a")).error
    assert error is not None
    assert ("ResultNotSerializable", True) == (error.type, error.message.endswith(reason))


@pytest.mark.parametrize("kind", ["async", "def"])
async def test_a_middleware_may_suppress_the_error_of_a_run(app: Dibs, kind: str) -> None:
    def handler() -> None:
        raise ValueError

    async def async_handler() -> None:
        raise ValueError

    add(app, "q", async_handler if kind == "async" else handler)
    app.middleware(run=lambda _: suppress(ValueError))
    await put(app, "q", "a")
    await run(app, until="empty")

    assert b"null" == (await outcome(app, "q", "a")).result


async def test_a_thread_that_cannot_be_started_is_an_error_of_the_run(
    app: Dibs, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = HandlerThreads.run

    def refuse(self: HandlerThreads[Any], work: Any) -> None:
        monkeypatch.setattr(HandlerThreads, "run", start)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(HandlerThreads, "run", refuse)
    add(app, "q", lambda: 7)
    await put(app, "q", "a")
    await run(app, until="empty")

    assert ["retried", "completed"] == await event_kinds(app, "q", "a")
