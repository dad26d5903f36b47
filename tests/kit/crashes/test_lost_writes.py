"""Writes that a restored copy of the files lost: each planted bug draws or accepts a lost number."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from dibs.model import rules
from dibs.model.results import EventPage
from dibs.storage.file import FileStorage
from dibs.storage.file.directory import Directory
from dibs.storage.file.replay import Replay
from dibs.storage.indexed.index import Index
from dibs_conformance.crashes.lost_writes import try_lost_writes
from dibs_conformance.report.values import level_verdict
from tests.kit.concurrent.test_levels import SHARED, run_level


def verdict(folder: Path) -> tuple[str, str]:
    found = run_level(lambda plan: try_lost_writes(plan, 0.0), f"file:{folder}", SHARED, 1)
    return level_verdict(found), found.failures[0].why if found.failures else ""


def test_files_draw_no_lost_number(tmp_path: Path) -> None:
    assert ("reached", "") == verdict(tmp_path)
    assert [] == [path for path in tmp_path.iterdir() if path.name.endswith("-copy")]


def test_an_open_storage_that_keeps_the_former_folder_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Replay, "forget_folder", lambda _: None)

    assert "broken" == verdict(tmp_path)[0]


@contextmanager
def small_jump(self: Index) -> Iterator[None]:
    """Jump by one ms: enough for equal times, not for a clock that was ahead."""
    self.ahead += 1_000
    yield


def test_a_copy_that_is_not_recognised_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Directory, "is_copy", lambda _: False)

    kind, why = verdict(tmp_path)

    assert ("broken", True) == (kind, "was drawn after the loss" in why), why


def test_a_jump_that_is_too_small_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Index, "jump", small_jump)

    kind, why = verdict(tmp_path)

    assert ("broken", True) == (kind, "was drawn after the loss" in why), why


def test_a_lost_fence_that_is_accepted_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = rules.decide_settle

    def mutant(slot: Any, settlement: Any, limits: Any) -> Any:
        found = original(slot, settlement, limits)
        return settlement.action if found == rules.LOST and slot.current is not None else found

    monkeypatch.setattr(rules, "decide_settle", mutant)

    kind, why = verdict(tmp_path)

    assert ("broken", True) == (kind, "a settlement with the lost fence" in why), why


def test_a_log_that_hides_new_events_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = FileStorage.events

    async def mutant(self: FileStorage, queue: str, *, after: str | None = None, **how: Any) -> EventPage:
        return EventPage(events=(), offset=after or "") if after else await original(self, queue, **how)

    monkeypatch.setattr(FileStorage, "events", mutant)

    kind, why = verdict(tmp_path)

    assert ("broken", True) == (kind, "misses the events of" in why), why
