"""The addresses in URLs: unescaped characters are refused, and no part of a password is shown anywhere."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from dibs import ConfigurationError, Dibs, DibsError, UnknownOption
from dibs.storage import registry
from dibs.storage.addresses import parse_address, parse_file_path, redact_url
from dibs_conformance.certification import certify
from tests.cli.shell import DIBS

#: The two halves of each password of eight letters. No name in the code or the messages contains them.
HALVES = ("Xq7v", "Kw9z")
#: Characters between the halves, unescaped.
BETWEEN = ["@", "/", "?", "#", "[", "]", "%", "%zz", "/@", "?a=", "@@", ":/", " ", "\t", "℀", "\udce9"]
SCHEMES = ["redis", "rediss", "redis+cluster", "unix", "postgresql", "postgres"]
WITHOUT_HOST = "{scheme}://user:{password}"
#: Forms of a URL, with the scheme and the password to be filled in. No server listens on port 1.
FORMS = [
    "{scheme}://user:{password}@127.0.0.1:1/0",
    "{scheme}://:{password}@127.0.0.1:1",
    WITHOUT_HOST,
    "{scheme}:user:{password}@127.0.0.1:1/0",
]


def bad_urls() -> list[str]:
    return [
        form.format(scheme=scheme, password=between.join(HALVES))
        for scheme in SCHEMES
        for form in FORMS
        for between in BETWEEN
        # Without a host, a single "@" makes the second half the host.
        if not (form == WITHOUT_HOST and between == "@")
    ]


def leaked(text: str) -> list[str]:
    """Return the parts of the password that a text contains: any three letters of one half."""
    parts = {half[start : start + 3] for half in HALVES for start in (0, 1)}
    return sorted(part for part in parts if part in text)


def everything_of(error: BaseException) -> str:
    """Return all texts that a log or a debugger shows of an error and of its causes."""
    return "".join(traceback.format_exception(error)) + repr(error) + str(error) + repr(error.args)


async def open_and_close(url: str) -> None:
    async with registry.open_storage(url):
        pass


async def connect(url: str) -> None:
    connection = registry.connect(url)
    if connection is not None:
        async with connection:
            pass


async def use_app(url: str) -> None:
    async with Dibs(url) as app:
        await app.queue("q").counts()


async def certify_url(url: str) -> None:
    await asyncio.to_thread(certify, url, "L0", 0.1)


WAYS: dict[str, Callable[[str], Any]] = {
    "open_storage": open_and_close,
    "app": use_app,
    "remove": registry.remove_storage,
    "connect": connect,
    "kit": certify_url,
}


@pytest.mark.parametrize("way", WAYS)
async def test_no_part_of_an_unescaped_password_is_in_an_error_or_a_log(
    way: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    found = {}
    for url in bad_urls():
        text = repr(Dibs(url)) + redact_url(url)
        try:
            await WAYS[way](url)
        except DibsError as error:
            text += everything_of(error)
        if leaked(text):
            found[url] = text

    assert {} == found
    assert [] == leaked(caplog.text)


@pytest.mark.parametrize("between", BETWEEN[:7])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_unescaped_password_is_refused_with_the_way_to_escape_it(scheme: str, between: str) -> None:
    url = FORMS[0].format(scheme=scheme, password=between.join(HALVES))

    with pytest.raises(ConfigurationError, match=r"%40|%5B") as caught:
        registry.open_storage(url)
    assert caught.value.__cause__ is None


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
async def test_no_part_of_an_escaped_password_is_in_the_error_of_a_closed_port(
    scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    password = quote("@/?#".join(HALVES), safe="")
    url = FORMS[0].format(scheme=scheme, password=password)

    with pytest.raises(DibsError) as caught:
        await open_and_close(url)
    assert [] == leaked(everything_of(caught.value) + caplog.text)
    assert "127.0.0.1:1" in str(caught.value)


@pytest.mark.parametrize("server", ["redis_server", "postgres_server"])
async def test_no_part_of_a_wrong_password_is_in_the_error_of_a_server(
    server: str, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    good = request.getfixturevalue(server).url
    user, at, host = good.rpartition("@")
    url = f"{user.rpartition(':')[0]}:{quote('@'.join(HALVES), safe='')}{at}{host}"

    with pytest.raises(DibsError) as caught:
        await open_and_close(url)
    assert [] == leaked(everything_of(caught.value) + caplog.text)


@pytest.mark.parametrize("query", ["password=Xq7v&Kw9z=1", "client_name=1&password=a&Kw9z=1"])
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_the_rest_of_a_password_in_the_query_is_not_shown_as_an_option(scheme: str, query: str) -> None:
    with pytest.raises(UnknownOption, match="not shown") as caught:
        registry.open_storage(f"{scheme}://127.0.0.1:1/0?{query}")
    assert [] == leaked(everything_of(caught.value))


@pytest.mark.long
@pytest.mark.parametrize("command", ["counts", "show", "worker", "certify"])
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_the_command_line_shows_no_part_of_a_password(tmp_path: Path, scheme: str, command: str) -> None:
    """Each process tries one password with all characters, because a process takes half a second."""
    url = FORMS[0].format(scheme=scheme, password="?@/#".join(HALVES))
    (tmp_path / "shop.py").write_text("from dibs import Dibs\napp = Dibs()\n")
    words = {"certify": [url], "worker": ["shop:app"]}.get(command, [])
    done = subprocess.run(
        [*DIBS, command, *words],
        env={**os.environ, "DIBS_URL": url},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert 0 != done.returncode
    assert [] == leaked(done.stdout + done.stderr)
    assert "%40" in done.stderr


GOOD: dict[str, tuple[str, str]] = {
    "redis://": ("", ""),
    "redis://h": ("", "h"),
    "redis://:6380/1": ("", ":6380"),
    "redis://u:p%40%2F@h:1/0?prefix=x": ("u:p%40%2F", "h:1"),
    "redis+cluster://u:p@a:1,b:2,[::1]:3": ("u:p", "a:1,b:2,[::1]:3"),
    "unix:///tmp/redis.sock?db=1": ("", ""),
    "postgresql://ann:a:b@h/db": ("ann:a:b", "h"),
    "postgresql:///db?host=/tmp&port=5433": ("", ""),
    "postgresql://pässword:ü@h/db": ("pässword:ü", "h"),
    "postgresql://%2Ftmp/db": ("", "%2Ftmp"),
}


@pytest.mark.parametrize("url", GOOD)
def test_a_url_with_escaped_characters_is_read(url: str) -> None:
    address = parse_address(url)

    assert GOOD[url] == (address.userinfo, address.hosts)


@pytest.mark.parametrize(
    "host", ["h:0", "h:65536", "h:x", "h:1:2", "[::1", "a:1,b:x", "h:-1", "h: 1", "h:٣", "h:" + "1" * 5000]
)
def test_a_host_that_cannot_be_read_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError):
        parse_address(f"redis://{host}/0")


@pytest.mark.parametrize("path", ["zero", "0x1", "-1", "1/2", "1.5", "²"])
def test_a_database_of_redis_that_is_not_a_number_is_refused(path: str) -> None:
    """redis-py would use database 0."""
    with pytest.raises(UnknownOption, match="must be a number"):
        registry.open_storage(f"redis://localhost/{path}")


@pytest.mark.parametrize("url", ["file://host/x", "file://./x", "file://x", "file://~/x"])
def test_a_file_url_with_a_host_is_refused(url: str) -> None:
    with pytest.raises(UnknownOption, match=r"file:\./jobs"):
        registry.open_storage(url)


def test_a_file_url_below_the_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")

    assert "/home/ada/jobs" == parse_file_path("file:~/jobs?fsync=1")
    assert "./~jobs" == parse_file_path("file:./~jobs")
    assert "file:/home/ada/jobs" == registry.open_storage("file:~/jobs").url
    with pytest.raises(UnknownOption, match="begins with ~"):
        parse_file_path("file:~nobody-of-this-name/jobs")


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("file:jobs", "jobs"),
        ("file:/jobs", "/jobs"),
        ("file:///jobs", "/jobs"),
        ("file://localhost/jobs", "/jobs"),
        ("file:////jobs", "/jobs"),
    ],
)
def test_the_path_of_a_file_url(url: str, path: str) -> None:
    assert path == parse_file_path(url)
