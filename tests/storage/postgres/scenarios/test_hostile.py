"""Ids, queue names and schema names with characters that SQL, format strings or terminals treat specially."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.model.job import JobData, NewJob
from dibs.model.requests import EnqueueRequest, JobPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done

IDS = (
    "'; DROP TABLE live; --",
    '"quoted"',
    "{a}[b]",
    "line\nbreak\ttab\r",
    "%s %(id)s %%",
    "\\x41\\",
    "\u0001\u007f",
    "é",
    "e\u0301",
    "a" * 510 + "é",
    "$1 $$ $x$",
    "NULL",
    "😀",
)
SCHEMAS = ('My "jobs"', "100% jobs; --", "schéma", "select", "o'clock", "{x} {name} $1$", "a$b$", "-- x")


async def test_an_id_is_kept_byte_for_byte(storage: PostgresStorage) -> None:
    await storage.enqueue("q", [asked(id, id.encode()) for id in IDS])

    assert set(IDS) == {id for id, _ in (await storage.list("q", "waiting")).items}
    jobs = await claimed(storage, limit=100)
    assert [(id, id.encode()) for id in IDS] == [(job.id, job.data.payload) for job in jobs]
    assert {"done"} == {one.status for one in await storage.settle("q", [done(job) for job in jobs])}
    assert len(IDS) == len((await storage.events("q")).events)


async def test_ids_that_none_can_have_are_unknown(storage: PostgresStorage) -> None:
    slots = await storage.get("q", ["a\0b", "\ud800", ""])

    assert [None, None, None] == [slot.current for slot in slots]
    assert ["not_found"] == await storage.cancel("q", ["a\0b"])


@pytest.mark.parametrize("schema", SCHEMAS)
async def test_a_schema_s_name_may_need_quoting(opening: Callable[..., PostgresStorage], schema: str) -> None:
    async with opening() as storage:
        await storage.enqueue("q", [asked("a")])
        await storage.settle("q", [done(job) for job in await claimed(storage)])

        assert ["a"] == [event.id for _, event in (await storage.events("q")).events]
        assert 1 == (await storage.counts(["q"]))["q"].completed
        assert not (await storage.wait(["q"], timeout=0.01)).woken


async def test_attributes_keep_every_byte_through_an_amend(storage: PostgresStorage) -> None:
    odd = {"a": b'{ "k" : [1,  2.50] }', 'n"\né': b'"\\u00e9"', "n": b"9007199254740992"}
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id="a", data=JobData(attributes=odd)))])
    await storage.amend("q", "a", JobPatch(attributes={"n": b"[ ]", "z": b"null"}))

    (slot,) = await storage.get("q", ["a"])
    assert slot.current is not None
    assert {**odd, "n": b"[ ]", "z": b"null"} == slot.current.data.attributes


async def test_jobs_and_outcomes_can_be_seen_in_sql(
    storage: PostgresStorage, connect: Callable[[], Any]
) -> None:
    await storage.enqueue("q", [asked("json", b'{"to": "ada"}'), asked("bytes", b"\xff")])
    await storage.enqueue("q", [asked("done", b"3", delay=1), asked("later", b"4", delay=60_000)])
    jobs = {job.id: job for job in await claimed(storage, limit=1)}
    await storage.settle("q", [done(job, b'{"ok": true}') for job in jobs.values()])
    connection = await connect()
    live = await connection.execute("SELECT id, state, payload ->> 'to', payload_bytes FROM jobs ORDER BY id")
    ended = await connection.execute("SELECT id, state, result ->> 'ok', queue FROM outcomes")

    assert [("json", "completed", "true", "q")] == await ended.fetchall()
    rows = {row[0]: row[1:] for row in await live.fetchall()}
    assert ("waiting", None, b"\xff") == rows["bytes"]
    assert "scheduled" == rows["later"][0]
