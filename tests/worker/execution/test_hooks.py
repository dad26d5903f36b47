"""The hook of a task, which is called between the end of a run and its settlement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dibs.client.app import Dibs
from dibs.client.calls.handler import Ending
from dibs.client.options.retention import Retention
from dibs.errors import PermanentError
from dibs.worker import run
from tests.worker.execution.test_outcome import Raiser
from tests.worker.jobs import add, outcome, put


async def run_with_hook(app: Dibs, hook: Any, function: Callable[[], Any]) -> None:
    add(app, "q", function, after=hook)
    await put(app, "q", "a")
    await run(app, until="empty")


async def test_a_hook_may_change_result_and_retention(app: Dibs) -> None:
    async def hook(ending: Ending) -> None:
        ending.result = {"was": ending.result}
        ending.retention = Retention(completed=None)

    await run_with_hook(app, hook, lambda: 7)

    kept = await outcome(app, "q", "a")
    assert (b'{"was":7}', None) == (kept.result, kept.expires_at)


async def test_a_hook_may_be_a_plain_function_and_sees_failures(app: Dibs) -> None:
    seen: list[tuple[str, str]] = []

    def hook(ending: Ending) -> None:
        assert ending.error is not None
        seen.append((ending.kind, ending.error.message))

    await run_with_hook(app, hook, Raiser(PermanentError("no")))

    assert [("failed", "no")] == seen


async def test_a_hook_is_not_called_when_a_job_is_retried(app: Dibs) -> None:
    seen: list[str] = []

    def hook(ending: Ending) -> None:
        seen.append(ending.kind)

    await run_with_hook(app, hook, Raiser(ValueError("no")))

    assert ["completed"] == seen


async def test_a_hook_that_raises_changes_nothing(app: Dibs) -> None:
    def hook(ending: Ending) -> None:
        ending.result = 8
        raise ValueError("no")

    await run_with_hook(app, hook, lambda: 7)

    assert b"7" == (await outcome(app, "q", "a")).result
