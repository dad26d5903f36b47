"""The traces that the end of an id leaves for an enqueue of the same id that runs at the same time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from dibs.model.job import OutcomeRetention
from dibs.model.requests import SettingsPatch
from dibs.storage.postgres import PostgresStorage
from tests.storage.postgres.jobs import asked, claimed, done

Connect = Callable[[], Any]

#: Makes each insert of a job draw one more number, as a concurrent call would.
ANOTHER_CALL = """
CREATE FUNCTION draws() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS
$$ BEGIN PERFORM nextval('numbers'); RETURN NEW; END $$;
CREATE TRIGGER draws BEFORE INSERT ON live FOR EACH ROW EXECUTE FUNCTION draws();
SELECT setval('numbers', (SELECT last_value - 100 FROM numbers))
"""
#: The rows of `live` that the current transaction has found by an index.
FETCHED = """
SELECT idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'live' AND schemaname = current_schema()
"""
COUNTS = "SELECT (SELECT count(*) FROM traces), (SELECT count(*) FROM ended)"


async def keep_nothing(storage: PostgresStorage) -> None:
    await storage.configure("q", SettingsPatch(retention=OutcomeRetention(completed=0)))


async def ended(storage: PostgresStorage, *ids: str) -> int:
    """Enqueue, claim and complete some ids in one call each, and return their highest fence."""
    await storage.enqueue("q", [asked(id) for id in ids])
    jobs = await claimed(storage)
    await storage.settle("q", [done(job, b"1") for job in jobs])
    return max(job.run.fence for job in jobs if job.run)


async def counts(connect: Connect) -> tuple[int, int]:
    """Return the number of rows in `traces` and in `ended`."""
    connection = await connect()
    found: tuple[int, int] = await (await connection.execute(COUNTS)).fetchone()
    await connection.commit()
    return found


@pytest.mark.parametrize("end", ["forgotten", "completed", "not kept"])
@pytest.mark.parametrize("ids", [["a"], ["a", "b"]])
async def test_a_number_drawn_before_another_life_of_the_id_is_drawn_again(
    storage: PostgresStorage, connect: Connect, end: str, ids: list[str]
) -> None:
    """An insert drew its number before the latest change of its id, so the number must not be stored."""
    if end == "not kept":
        await keep_nothing(storage)
    if end == "forgotten":
        highest = (await storage.enqueue("q", [asked("a")]))[0].revision
        await storage.forget("q", ["a"])
    else:
        highest = await ended(storage, "a")
    mine = await connect()
    await mine.execute(ANOTHER_CALL)
    await mine.commit()

    answers = await storage.enqueue("q", [asked(id) for id in ids])

    assert ["queued"] * len(ids) == [answer.status for answer in answers]
    assert answers[0].revision > highest


async def test_an_outcome_that_is_not_kept_writes_one_row_for_a_call(
    storage: PostgresStorage, connect: Connect
) -> None:
    await keep_nothing(storage)
    await ended(storage, "a", "b", "c")

    assert (1, 0) == await counts(connect)


async def test_an_outcome_that_is_not_kept_replaces_an_older_one(
    storage: PostgresStorage, connect: Connect
) -> None:
    await ended(storage, "a")
    await keep_nothing(storage)
    await ended(storage, "a", "b")

    assert (1, 1) == await counts(connect)
    assert [None, None] == [slot.outcome for slot in await storage.get("q", ["a", "b"])]
    assert 1 == (await storage.prune("q", 10)).outcomes


async def test_prune_leaves_the_traces_while_a_transaction_may_need_them(
    storage: PostgresStorage, connect: Connect
) -> None:
    mine = await connect()
    await mine.execute("SELECT pg_current_xact_id()")
    await keep_nothing(storage)
    await ended(storage, "a")
    await storage.enqueue("q", [asked("b")])
    await storage.forget("q", ["b"])

    await storage.prune("q", 10)
    assert (1, 1) == await counts(connect)
    await mine.rollback()
    await storage.prune("q", 10)
    assert (0, 0) == await counts(connect)


async def test_a_settle_that_was_planned_on_an_empty_table_reads_only_its_jobs(
    storage: PostgresStorage, connect: Connect
) -> None:
    """A session keeps a plan for hours. Once, such a plan read the whole queue for each settlement."""
    settle = (
        "SELECT s.statuses FROM settle('{q}', ARRAY[%s], '{t}', NULL, %s::text[], %s, NULL, NULL, NULL) s"
    )
    await storage.grant(["q"], 60_000, "test")
    connection = await connect()
    await connection.execute(settle, [1, ["unknown"], [1]])
    await connection.commit()
    for first in range(0, 3000, 1000):
        await storage.enqueue("q", [asked(f"{n:05}") for n in range(first, first + 1000)])
    jobs = await claimed(storage, limit=100)

    fences = [job.run.fence for job in jobs if job.run]
    row = await (await connection.execute(settle, [100, [job.id for job in jobs], fences])).fetchone()
    ((fetched,),) = await (await connection.execute(FETCHED)).fetchall()

    assert (None,) == row
    assert 100 <= fetched <= 200
