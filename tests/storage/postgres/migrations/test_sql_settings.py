"""The SQL functions obey keys, timed releases and the setting fail_handler, as the verbs from Python do."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dibs.model.requests import SettingsPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.sql_programs import SqlProgram


async def test_a_key_of_a_program_is_that_of_python(sql: SqlProgram, storage: PostgresStorage) -> None:
    await sql.call("enqueue_job", queue="q", id="a", key="tenant-7")
    (slot,) = await storage.get("q", ["a"])
    shown = await sql.row("SELECT * FROM {s}.jobs")

    assert slot.current is not None
    assert ("tenant-7", "tenant-7") == (slot.current.data.key, shown["key"])


async def test_a_released_job_waits_for_its_delay(sql: SqlProgram, storage: PostgresStorage) -> None:
    await sql.call("enqueue_job", queue="q", id="a")
    (job,) = await sql.calls("claim_jobs", queue="q")
    answer = await sql.value("release_job", queue="q", id="a", fence=job["fence"], delay=timedelta(hours=1))
    (slot,) = await storage.get("q", ["a"])

    assert slot.current is not None
    assert ("returned", 0) == (answer, slot.current.attempts)
    assert slot.current.run_at >= slot.current.enqueued_at + 3_600_000


@pytest.mark.parametrize("handled", [True, False])
async def test_the_setting_of_the_queue_decides_about_the_fail_job(
    sql: SqlProgram, storage: PostgresStorage, *, handled: bool
) -> None:
    await storage.configure("q", SettingsPatch(fail_handler=handled))
    await sql.call("enqueue_job", queue="q", id="a")
    await sql.call("enqueue_job", queue="q", id="b")
    one, two = await sql.calls("claim_jobs", queue="q", max_jobs=2)
    await sql.value("fail_job", queue="q", id=one["id"], fence=one["fence"], error="no")
    handed = await sql.call("hand_off_job", queue="q", id=two["id"], fence=two["fence"])
    await sql.value("finish_job", queue="q", id=two["id"], revision=handed["revision"], error="no")

    assert 2 * handled == (await storage.counts(["q!fail"]))["q!fail"].waiting
