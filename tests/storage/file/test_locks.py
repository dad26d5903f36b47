"""The lock on a directory, when the system does not let go of it at once."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest

from dibs.errors import OutcomeUnknown
from tests.storage.file.place import ids_in, opened, request


def refusing(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the next unlocks fail, as on a file system whose lock server is away."""
    real, left = fcntl.flock, times

    def flock(descriptor: int, operation: int) -> None:
        nonlocal left
        if operation == fcntl.LOCK_UN and left:
            left -= 1
            raise OSError(5, "Input/output error")
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)


async def test_a_lock_the_system_does_not_take_back_at_once_is_given_back_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was kept for good: the process went on, and every other one waited for ever."""
    async with opened(tmp_path) as mine, opened(tmp_path) as others:
        await others.enqueue("q", [request("z")])
        refusing(monkeypatch, 1)
        await mine.enqueue("q", [request("a")])
        await others.enqueue("q", [request("b")])

    assert ["a", "b", "z"] == await ids_in(tmp_path)


async def test_a_lock_that_cannot_be_given_back_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as mine:
        await mine.enqueue("q", [request("z")])
        refusing(monkeypatch, 2)
        with pytest.raises(OutcomeUnknown, match="cannot be released"):
            await mine.enqueue("q", [request("a")])
        await mine.enqueue("q", [request("b")])

    assert {"b", "z"} <= set(await ids_in(tmp_path))
