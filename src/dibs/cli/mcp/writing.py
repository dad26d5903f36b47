"""The tools that change jobs and queues. A server has them only if it was started with --write."""

from __future__ import annotations

from typing import Any

from attrs import define

from dibs.cli.mcp.errors import tool_errors
from dibs.client.stored_queue import wake_flows_of
from dibs.model.requests import JobPatch, SettingsPatch
from dibs.storage.protocol import Storage


@define(eq=False)
class WritingTools:
    """Changes an open storage. The docstring of a method tells a language model when to call the tool."""

    storage: Storage

    async def retry_jobs(self, queue: str, ids: list[str]) -> dict[str, Any]:
        """Enqueue failed jobs again with their payloads. The answer has a word for each id: "queued", or
        the reason why not.
        """
        with tool_errors():
            return _answers(queue, ids, await self.storage.retry_failed(queue, ids))

    async def cancel_jobs(self, queue: str, ids: list[str], running: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - an argument of a tool has a name
        """Cancel waiting jobs; with `running`, also ask active jobs to stop. A cancelled job does not run."""
        with tool_errors():
            answers = await self.storage.cancel(queue, ids, running=running)
            cancelled = [id for id, answer in zip(ids, answers, strict=True) if answer == "cancelled"]
            if cancelled:
                await wake_flows_of(self.storage, queue, cancelled)
        return _answers(queue, ids, answers)

    async def run_now(self, queue: str, id: str) -> dict[str, Any]:
        """Make a waiting job due now, instead of at its start time or at the end of its backoff."""
        with tool_errors():
            return _answers(queue, [id], [await self.storage.amend(queue, id, JobPatch(delay=0))])

    async def pause_queue(self, queue: str) -> dict[str, Any]:
        """Stop all workers from claiming jobs of a queue. Running jobs continue, and new jobs wait."""
        return await self._set_paused(queue, paused=True)

    async def resume_queue(self, queue: str) -> dict[str, Any]:
        """Allow workers to claim jobs of a paused queue again."""
        return await self._set_paused(queue, paused=False)

    async def _set_paused(self, queue: str, *, paused: bool) -> dict[str, Any]:
        with tool_errors():
            settings = await self.storage.configure(queue, SettingsPatch(paused=paused))
        return {"queue": queue, "paused": settings.paused}


def _answers(queue: str, ids: list[str], answers: Any) -> dict[str, Any]:
    return {"queue": queue, "answers": dict(zip(ids, answers, strict=True))}
