"""The loader of Lua files, and the Lua files: each begins with its arguments and its reply."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import pytest

from dibs.storage.redis import open_url
from dibs.storage.redis.network import scripts
from dibs.storage.redis.network.scripts import BadScript, assemble, library_name, library_text, script
from dibs_conformance.servers import RedisServer

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
    name, text = library_name(), library_text()

    assert VERBS == re.findall(r"^register\('(\w+)'\)$", text, re.MULTILINE)
    assert text.startswith(f"#!lua name={name}\n")
    assert library_name(1) != name
    assert f"redis.register_function('{name}_' .. name" in text


async def test_a_process_whose_server_has_the_library_does_not_join_it(
    valkey_server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_url(valkey_server.url, prefix=prefix) as storage:
        await storage.grant(["q"], 60_000, "worker")
    monkeypatch.setattr(scripts, "library_text", cache(scripts.library_text.__wrapped__))
    async with open_url(valkey_server.url, prefix=prefix) as storage:
        await storage.grant(["q"], 60_000, "worker")

    assert 0 == scripts.library_text.cache_info().misses


def test_the_name_of_the_library_follows_each_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read, name = scripts._read_lua, scripts.library_name.__wrapped__

    def changed(file: str) -> str:
        with monkeypatch.context() as patch:
            patch.setattr(scripts, "_read_lua", lambda one: read(one) + ("\n" if one == file else ""))
            return name()

    files = scripts._file_names()
    assert len({name(), *map(changed, files)}) == len(files) + 1
