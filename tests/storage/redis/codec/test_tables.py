"""The tables that Lua and Python both have: the same words get the same numbers."""

from __future__ import annotations

import re

import pytest

from dibs.storage.redis.codec import data, event_log, requests, settlements
from tests.source import PROJECT

INCLUDE = PROJECT / "src/dibs/storage/redis/lua/include"


def constants(file: str, prefix: str) -> dict[str, int]:
    """Return the numbers in Lua statements such as `local STATUS_DONE, STATUS_LOST = 1, 2`, by name."""
    text = (INCLUDE / file).read_text("utf-8")
    found: dict[str, int] = {}
    for names, numbers in re.findall(rf"local ((?:{prefix}\w+,?\s*)+)=\s*((?:\d+,?\s*)+)", text):
        words = [name.strip().removeprefix(prefix).lower() for name in names.split(",")]
        found |= dict(zip(words, map(int, re.findall(r"\d+", numbers)), strict=True))
    return found


def numbered(words: tuple[str, ...]) -> dict[str, int]:
    """Return the words with their numbers from 1, named as Lua names them: no `+` in a name."""
    return {word.replace("active+blocked", "blocked"): number for number, word in enumerate(words, 1)}


@pytest.mark.parametrize(
    ("file", "prefix", "words"),
    [
        ("accept.lua", "STATUS_", requests.ENQUEUE_STATUSES),
        ("accept.lua", "FOUND_", requests.FOUND_STATES),
        ("settle_one.lua", "STATUS_", settlements.SETTLE_STATUSES),
    ],
)
def test_statuses_have_the_same_numbers(file: str, prefix: str, words: tuple[str, ...]) -> None:
    lua, python = constants(file, prefix), numbered(words)

    assert lua
    assert {} == {word: number for word, number in lua.items() if python.get(word) != number}


def test_kinds_of_events_have_the_same_numbers() -> None:
    text = (INCLUDE / "event_log.lua").read_text("utf-8")
    table = re.search(r"EVENT_KINDS = \{(.*?)\}", text, re.DOTALL)

    assert table is not None
    lua = {word: int(number) for word, number in re.findall(r"(\w+) = (\d+)", table[1])}
    assert numbered(event_log.KINDS) == lua


def test_kinds_of_outcomes_have_the_same_order() -> None:
    text = (INCLUDE / "outcomes.lua").read_text("utf-8")
    table = re.search(r"OUTCOME_KINDS = \{(.*?)\}", text)

    assert table is not None
    assert list(data.OUTCOME_KINDS) == re.findall(r"'(\w+)'", table[1])
