"""The loader of Lua files, and the Lua files: each begins with its arguments and its reply."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from dibs.storage.redis.network.scripts import BadScript, assemble, script

LUA = files("dibs.storage.redis").joinpath("lua")
VERBS = sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua"))


def put_together(name: str, **texts: str) -> str:
    def read(wanted: str) -> str:
        key = wanted.replace("include/", "")
        if key not in texts:
            raise FileNotFoundError(wanted)
        return texts[key]

    return assemble(name, read)


def test_an_include_is_inserted_at_its_line() -> None:
    assert "local a = 1\nreturn a\n" == put_together("verb", verb="-- @include a\nreturn a", a="local a = 1")


def test_a_file_that_two_files_include_is_inserted_once() -> None:
    text = put_together(
        "verb", verb="-- @include a\n-- @include b", a="-- @include c", b="-- @include c", c="local c"
    )

    assert 1 == text.count("local c")


def test_a_nested_file_is_inserted_with_its_own_copy_of_what_stands_nowhere_above() -> None:
    """Two functions may nest files that include the same file, and each needs its own copy."""
    text = put_together(
        "verb", verb="-- @include d\n-- @nest a\n-- @nest b", a="-- @include c\n-- @include d",
        b="-- @enclose\n-- @include c", c="local c", d="local d",
    )  # fmt: skip

    assert text == "local d\nlocal c\nlocal c\n"


def test_the_lines_after_an_enclose_are_one_function() -> None:
    text = put_together("verb", verb="-- @include a\nreturn a", a="local a = 1\n-- @enclose")

    assert text == "local a = 1\nreturn (function()\nreturn a\nend)()\n"


def test_a_missing_include_is_reported_with_its_line() -> None:
    with pytest.raises(BadScript, match=r"verb\.lua:2: there is no include/a\.lua"):
        put_together("verb", verb="return 1\n-- @include a")


def test_an_include_of_itself_is_reported_with_its_line() -> None:
    with pytest.raises(BadScript, match=r"include/b\.lua:1: include/a includes itself"):
        put_together("verb", verb="-- @include a", a="-- @include b", b="-- @include a")


@pytest.mark.parametrize("name", VERBS)
def test_a_script_begins_with_its_contract(name: str) -> None:
    header = LUA.joinpath(f"{name}.lua").read_text("utf-8").partition("\n\n")[0]

    for word in ("KEYS", "ARGV[1]", "Returns"):
        assert word in header


@pytest.mark.parametrize("name", VERBS)
def test_a_script_has_its_hash(name: str) -> None:
    assert re.fullmatch("[0-9a-f]{40}", script(name).sha)


def test_no_script_looks_into_payloads() -> None:
    """cjson turns integers above 2**53 into floats, and {} and [] into the same table."""
    assert [] == [name for name in VERBS if "cjson" in script(name).text]
