"""Accounts with few rights: what dibs needs is checked before the first write, and stands in the docs."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

import pytest

from dibs.errors import DibsError, StorageUnavailable
from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest
from dibs.storage.redis import open_url
from dibs.storage.redis.network.rights import COMMANDS, OPTIONAL, needed_rights
from dibs_conformance.servers import RedisServer
from tests.source import PROJECT
from tests.storage.redis.scenarios import test_full_server as verbs

REQUEST = EnqueueRequest(job=NewJob(id="a"))
#: Returns the URL of an account with the rights of dibs, changed by rules of ACL SETUSER.
MakeAccount = Callable[..., str]


@pytest.fixture
def account(redis_server: RedisServer, prefix: str) -> MakeAccount:
    def make(*rules: str, rights: str | None = None) -> str:
        given = needed_rights(prefix) if rights is None else rights
        redis_server.execute("ACL", "SETUSER", prefix, "reset", "on", ">secret", *given.split(), *rules)
        return f"redis://{prefix}:secret@127.0.0.1:{redis_server.port}/0?prefix={prefix}"

    return make


async def test_every_verb_works_with_the_rights_of_the_docs(account: MakeAccount) -> None:
    async with open_url(account()) as storage:
        await verbs.fill(storage)
        for call in {**verbs.READS, **verbs.ALLOWED, **verbs.REFUSED}.values():
            await call(storage)
        assert verbs.MANY == len(await verbs.read_all(storage)) == len(await verbs.export_all(storage))
        await verbs.drain(storage)
        assert storage.capabilities.blocking_claim


def test_the_docs_have_the_rights() -> None:
    page = (PROJECT / "docs/howto/redis.md").read_text("utf-8")

    assert (
        needed_rights("dibs").split()
        == re.sub(r"\\\n", "", page.partition(">secret ")[2]).partition("```")[0].split()
    )


def test_each_command_of_a_script_is_checked(redis_server: RedisServer) -> None:
    lua = files("dibs.storage.redis").joinpath("lua")
    scripts = [*lua.iterdir(), *lua.joinpath("include").iterdir()]
    text = "\n".join(path.read_text("utf-8") for path in scripts if path.name.endswith(".lua"))
    words = sorted(set(re.findall(r"'([A-Z]{3,})'", text)))
    known = redis_server.execute("COMMAND", "INFO", *words)

    assert {word for word, found in zip(words, known, strict=True) if found} <= {
        *(command[0] for command in COMMANDS),
        *OPTIONAL,
    }


def test_no_command_is_newer_than_redis_6_2(valkey_server: RedisServer) -> None:
    """These rights are enough: dibs calls scripts without functions. Valkey has docs, and Redis 6.2 none."""
    names = sorted({command[0].lower() for command in COMMANDS} | {name.lower() for name in OPTIONAL})
    docs = valkey_server.execute("COMMAND", "DOCS", *names)
    since = {
        name: dict(zip(doc[::2], doc[1::2], strict=True))["since"]
        for name, doc in zip(docs[::2], docs[1::2], strict=True)
    }

    assert names == sorted(since)
    assert {} == {name: at for name, at in since.items() if tuple(map(int, at.split("."))) >= (6, 3)}


async def test_each_missing_command_is_named_at_the_opening(account: MakeAccount) -> None:
    for name in sorted({command[0].lower() for command in COMMANDS}):
        url = account(f"-{name}")
        with pytest.raises(StorageUnavailable, match=rf"ACL SETUSER .* \+{name} "):
            async with open_url(url):
                pass


@pytest.mark.parametrize(
    ("rules", "missing"),
    [
        (("-multi",), r"\+discard \+multi "),
        (("resetkeys", "~other:*"), r"~t\d+:\* "),
        (("resetchannels", "&other:*"), r"&t\d+:\* "),
    ],
)
async def test_other_missing_rights_are_named_and_nothing_is_written(
    account: MakeAccount, redis_server: RedisServer, prefix: str, rules: tuple[str, ...], missing: str
) -> None:
    url = account(*rules)
    with pytest.raises(StorageUnavailable, match=missing):
        async with open_url(url):
            pass

    assert [] == redis_server.execute("KEYS", f"{prefix}:*")


@pytest.mark.parametrize("rules", [("-info", "-blpop"), ("+@all", "-@dangerous")])
async def test_a_server_may_forbid_what_dibs_can_do_without(
    account: MakeAccount, rules: tuple[str, ...]
) -> None:
    url = account(*rules)
    async with open_url(url) as storage:
        assert "does not permit INFO" in storage.durability
        await storage.enqueue("q", [REQUEST])
        lease = (await storage.grant(["q"], 60_000, "worker")).lease
        assert 1 == len((await storage.claim_blocking("q", lease, 1, claim_id="c", timeout=1)).jobs)
        assert [True] == await storage.forget("q", ["a"])


async def test_a_right_to_publish_that_ends_costs_a_wake_up_only(account: MakeAccount) -> None:
    """The step is written when its message is sent, so its caller must not get an error."""
    url = account()
    async with open_url(url, poll=0.05) as storage:
        await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="before"))])
        since = (await storage.wait(["q"], timeout=0)).since
        account("-publish")
        assert "queued" == (await storage.enqueue("q", [REQUEST]))[0].status
        assert (await storage.wait(["q"], since=since, timeout=20)).woken
        assert 2 == (await storage.counts(["q"]))["q"].waiting


async def test_a_refused_account_shows_no_secret(account: MakeAccount) -> None:
    with pytest.raises(DibsError) as caught:
        async with open_url(account("-hset")):
            pass

    assert "secret" not in str(caught.value)
