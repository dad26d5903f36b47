"""The loader of Lua files, and the Lua files: each begins with its arguments and its reply."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

from dibs.storage.redis.network.scripts import BadScript, assemble, library, script

LUA = files("dibs.storage.redis").joinpath("lua")
VERBS = sorted(path.name.removesuffix(".lua") for path in LUA.iterdir() if path.name.endswith(".lua"))


def put_together(name: str, **texts: str) -> str:
    def read(wanted: str) -> str:
        key = wanted.replace("include/", "")
        if key not in texts:
            raise FileNotFoundError(wanted)
        return texts[key]

    return assemble([name], read)


def test_an_include_is_defined_before_the_verb() -> None:
    text = put_together("verb", verb="-- @include a\nreturn a", a="local a = {}")

    assert "local a\nlocal verbs = {}\ndo\na = {}\nend\nverbs.verb = function()\nreturn a\nend" == text


def test_a_file_that_two_files_include_is_defined_once() -> None:
    text = put_together(
        "verb", verb="-- @include a\n-- @include b", a="-- @include c", b="-- @include c", c="local c = {}"
    )

    assert 1 == text.count("local c")


def test_a_name_that_another_file_uses_is_declared_once_and_others_stay_in_their_file() -> None:
    text = put_together(
        "verb", verb="-- @include a\nreturn f()", a="-- why\nlocal own, one = {}, 2\nlocal function f()\nend",
    )  # fmt: skip

    assert "local f" in text.splitlines()
    assert "do\nlocal own, one = {}, 2\nfunction f()\nend\nend" in text


def test_a_constant_that_another_file_uses_stands_in_the_places_of_its_name() -> None:
    text = put_together(
        "verb", verb="-- @include a\nreturn SIZE + row.SIZE, 'SIZE'",
        a="local SIZE, NAME = 4, 'a, b'\nlocal x = NAME",
    )  # fmt: skip

    assert "return 4 + row.SIZE, 'SIZE'" in text
    assert "do\n\nlocal x = 'a, b'\nend" in text


def test_a_name_that_two_files_define_for_others_is_reported() -> None:
    with pytest.raises(BadScript, match=r"include/b\.lua and include/a\.lua both define f"):
        put_together(
            "verb", verb="-- @include a\n-- @include b\nreturn f()", a="local function f()\nend",
            b="local function f()\nend",
        )  # fmt: skip


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


def test_the_library_has_a_function_for_each_verb_and_another_name_for_each_database() -> None:
    ours = library()

    assert VERBS == re.findall(r"^register\('(\w+)'\)$", ours.text, re.MULTILINE)
    assert ours.text.startswith(f"#!lua name={ours.name}\n")
    assert library(1).name != ours.name
    assert f"redis.register_function('{ours.name}_' .. name" in ours.text
