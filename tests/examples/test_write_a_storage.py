"""Tests that docs/howto/write_a_storage.md quotes the code and the messages as they are."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from dibs_conformance import certify
from tests.docs.pages import Page
from tests.kit.mutants import MUTANTS
from tests.kit.play import play
from tests.source import PROJECT

PAGE = Page("howto/write_a_storage.md")


def test_the_first_run_fails_with_the_message_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the method to write next and its task."""
    assert ["shelf.py"] == PAGE.save(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shelf = importlib.import_module("shelf")
    try:
        text = certify(shelf.open_shelf, examples=1, seed=1).text()
    finally:
        del sys.modules["shelf"]

    [message] = [block.text for block in PAGE.blocks if "every verb is implemented" in block.text]
    assert " ".join(message.split()) in " ".join(text.split())


def test_a_wrong_answer_is_reported_with_the_message_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["an_update_in_place_is_not_counted"].plant(monkeypatch)

    failure, _ = play(1, walkthrough=True)

    assert failure is not None
    assert f"FAILED: {failure.law}: {failure.why}\n" in PAGE.text
    assert 3 == len(failure.story)


def test_the_quoted_code_is_in_the_package() -> None:
    """Each line of the quoted `admit` is a line of the example."""
    [quoted] = [block.text for block in PAGE.blocks if block.text.startswith("def admit")]
    source = (PROJECT / "examples/dibs-sqlite/src/dibs_sqlite/enqueueing.py").read_text("utf-8")
    lines = {line.strip() for line in source.splitlines()}
    # The page leaves out the cast that mypy needs.
    quoted = quoted.replace("note_event(result.status,", 'note_event(cast("NoteKind", result.status),')

    assert [] == [line for line in quoted.splitlines()[1:] if line.strip() not in lines]
