"""The first steps of docs/howto/write_a_storage.md, taken as they stand there."""

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


def test_the_first_run_fails_with_the_words_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message names the verb to write next, and what it is to do."""
    assert ["shelf.py"] == PAGE.save(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    shelf = importlib.import_module("shelf")
    try:
        text = certify(shelf.open_place, examples=1, seed=1).text()
    finally:
        del sys.modules["shelf"]

    [said] = [block.text for block in PAGE.blocks if "every verb is there" in block.text]
    assert " ".join(said.split()) in text


def test_a_wrong_answer_is_told_with_the_words_on_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS["an_update_in_place_is_not_counted"].plant(monkeypatch)

    failure, _ = play(1, tour=True)

    assert failure is not None
    assert f"BROKEN: {failure.law}: {failure.why}\n" in PAGE.text
    assert 3 == len(failure.story)


def test_what_the_page_quotes_is_in_the_package() -> None:
    """The shortened code of `admit`, line by line."""
    [quoted] = [block.text for block in PAGE.blocks if block.text.startswith("def admit")]
    source = (PROJECT / "examples/dibs-sqlite/src/dibs_sqlite/enqueueing.py").read_text("utf-8")
    lines = {line.strip() for line in source.splitlines()}
    # Without types, and without the cast that they ask for.
    quoted = quoted.replace("noted(answer.status,", 'noted(cast("NoteKind", answer.status),')

    assert [] == [line for line in quoted.splitlines()[1:] if line.strip() not in lines]
