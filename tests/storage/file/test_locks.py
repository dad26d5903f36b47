"""The commit lock, when the system refuses to release it, and while another process holds it."""

from __future__ import annotations

import asyncio
import fcntl
from pathlib import Path

import pytest
from filelock import FileLock

from dibs.errors import OutcomeUnknown
from tests.storage.file.folder import ids_in, opened, request


def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Make the next unlocks fail, as on a file system whose lock server is not reachable."""
    real, left = fcntl.flock, times

    def flock(descriptor: int, operation: int) -> None:
        nonlocal left
        if operation == fcntl.LOCK_UN and left:
            left -= 1
            raise OSError(5, "Input/output error")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


async def test_a_failed_release_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, the lock was kept, and every other process waited for ever."""
    async with opened(tmp_path) as mine, opened(tmp_path) as others:
        await others.enqueue("q", [request("z")])
        refusing(monkeypatch, 1)
        await mine.enqueue("q", [request("a")])
        await others.enqueue("q", [request("b")])

    assert ["a", "b", "z"] == await ids_in(tmp_path)


async def test_a_lock_that_cannot_be_released_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as mine:
        await mine.enqueue("q", [request("z")])
        refusing(monkeypatch, 2)
        with pytest.raises(OutcomeUnknown, match="cannot be released"):
            await mine.enqueue("q", [request("a")])
        await mine.enqueue("q", [request("b")])

    assert {"b", "z"} <= set(await ids_in(tmp_path))


async def test_a_storage_says_for_how_long_it_has_waited_for_the_lock(tmp_path: Path) -> None:
    async with opened(tmp_path) as mine:
        await mine.enqueue("q", [request("z")])
        with FileLock(tmp_path / "lock", thread_local=False):
            waiting = asyncio.create_task(mine.enqueue("q", [request("a")]))
            async with asyncio.timeout(45):
                while "the step before it" in mine._lock.waits_for:  # noqa: ASYNC110 - the lock sends no event
                    await asyncio.sleep(0.01)
            reason = mine._lock.waits_for
        await waiting

        assert "lock, which another process has held for " in reason
        assert 60 > float(reason.partition("has held for ")[2].partition(" s")[0])
        assert "the step before it" in mine._lock.waits_for
