"""The functions of sql_calls.sql store and answer the same as the verbs from Python."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from msgspec.structs import replace
from psycopg.types.json import Jsonb

from dibs import Queue, Reject, Status
from dibs.client.options.arguments import BASE32_DIGITS, new_id
from dibs.model.error_text import CUT_MARK
from dibs.model.limits import LATEST_TIME
from dibs.storage.postgres import PostgresStorage
from dibs.storage.postgres.queries import Queries
from dibs_conformance.servers import PostgresServer
from tests.storage.postgres.jobs import asked, claimed
from tests.storage.postgres.sql_programs import SqlProgram

# -- enqueue -----------------------------------------------------------------------------------------------

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
#: Arguments of enqueue_job(), and the settings of `queue.enqueue` that store the same job.
SAME: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"priority": -7, "run_at": NOON}, {"priority": -7, "run_at": NOON}),
    ({"attributes": Jsonb({"who": "me", "n": [1, None]})}, {"attributes": {"who": "me", "n": [1, None]}}),
    ({"attributes": Jsonb({})}, {"attributes": {}}),
    ({"lease": timedelta(seconds=90)}, {"lease": 90}),
    (
        {"timeout": timedelta(microseconds=1), "max_retries": 0, "retention": timedelta(0)},
        {"timeout": timedelta(microseconds=1), "max_retries": 0, "retention": 0},
    ),
    ({"retention": timedelta(days=2)}, {"retention": "2d"}),
]


def without_numbers(status: Status | None) -> Status:
    assert status is not None
    changed: dict[str, Any] = {"id": "", "revision": 0, "enqueued_at": None}
    if status.run_at == status.enqueued_at:
        changed["run_at"] = None
    return replace(status, **changed)


@pytest.mark.parametrize(("arguments", "settings"), SAME)
async def test_a_job_is_stored_as_from_python(
    sql: SqlProgram, queue: Queue, arguments: dict[str, Any], settings: dict[str, Any]
) -> None:
    data = {"to": "ada", "é": [1.5, None, "😀"]}
    await queue.enqueue(data, id="python", **settings)
    answer = await sql.call("enqueue_job", queue="q", id="sql", payload=Jsonb(data), **arguments)

    assert ("sql", "queued", False) == (answer["id"], answer["status"], answer["repeated"])
    by_sql = await queue.get("sql")
    assert by_sql is not None
    assert by_sql.revision == answer["revision"]
    assert without_numbers(await queue.get("python")) == without_numbers(by_sql)


async def test_a_delay_counts_from_the_time_of_the_storage(sql: SqlProgram, storage: PostgresStorage) -> None:
    await sql.call("enqueue_job", queue="q", id="a", delay=timedelta(microseconds=1_500_001))
    (slot,) = await storage.get("q", ["a"])

    assert slot.current is not None
    assert 1501 == slot.current.run_at - slot.current.enqueued_at


async def test_the_latest_time_is_that_of_python(sql: SqlProgram, storage: PostgresStorage) -> None:
    text = "9998-12-31 23:59:59.999+00"
    await sql.rows(f"SELECT {{s}}.enqueue_job('q', 'a', run_at => '{text}')")
    (slot,) = await storage.get("q", ["a"])

    assert slot.current is not None
    assert LATEST_TIME == slot.current.run_at


async def test_an_id_is_generated_that_sorts_by_time(sql: SqlProgram, queue: Queue) -> None:
    before = new_id()
    ids = [(await sql.call("enqueue_job", queue="q"))["id"] for _ in range(20)]

    assert ids == sorted(set(ids))
    assert {26} == {len(id) for id in ids}
    assert set("".join(ids)) <= set(BASE32_DIGITS)
    # The first ten digits are the time in ms, as in ids from Python; the clocks are those of one machine.
    assert before[:8] <= ids[0][:8] <= new_id()[:8]
    assert await queue.get(ids[0]) is not None


async def test_the_statuses_are_those_of_the_verb(sql: SqlProgram, storage: PostgresStorage) -> None:
    statuses = [(await sql.call("enqueue_job", queue="q", id="a"))["status"]]
    statuses += [(await sql.call("enqueue_job", queue="q", id="a"))["status"]]
    statuses += [(await sql.call("enqueue_job", queue="q", id="a", on_conflict="reject"))["status"]]
    await claimed(storage)
    statuses += [(await sql.call("enqueue_job", queue="q", id="a"))["status"]]

    assert ["queued", "updated", "duplicate", "blocked"] == statuses


@pytest.mark.parametrize(
    ("on_conflict", "end", "status"),
    [
        ("reject", "complete_job", "completed"),
        ("reject", "fail_job", "queued"),
        ("reject_failed", "fail_job", "failed"),
        ("update", "complete_job", "queued"),
    ],
)
async def test_an_outcome_counts_for_reject(
    sql: SqlProgram, queue: Queue, on_conflict: str, end: str, status: str
) -> None:
    await queue.enqueue(1, id="a")
    (job,) = await sql.calls("claim_jobs", queue="q")
    extra = {"error": "no"} if end == "fail_job" else {}
    assert "done" == await sql.value(end, queue="q", id="a", fence=job["fence"], **extra)

    assert status == (await sql.call("enqueue_job", queue="q", id="a", on_conflict=on_conflict))["status"]


async def test_a_request_key_is_known_to_both_sides(sql: SqlProgram, queue: Queue) -> None:
    first = await queue.enqueue(1, request_key="python")
    repeat = await sql.call("enqueue_job", queue="q", request_key="python")
    assert (first.id, True, first.revision) == (repeat["id"], repeat["repeated"], repeat["revision"])

    first_sql = await sql.call("enqueue_job", queue="q", request_key="sql")
    again = await queue.enqueue(1, request_key="sql", on_conflict=Reject())
    assert (first_sql["id"], first_sql["revision"]) == (again.id, again.revision)
    assert 2 == (await queue.counts()).waiting


async def test_a_commit_makes_a_job_visible_and_a_rollback_none(sql: SqlProgram, queue: Queue) -> None:
    await sql.rows("BEGIN")
    await sql.rows("CREATE TEMP TABLE orders (id text)")
    await sql.call("enqueue_job", queue="q", id="a")
    assert await queue.get("a") is None
    await sql.rows("COMMIT")
    await sql.rows("BEGIN")
    await sql.call("enqueue_job", queue="q", id="b")
    await sql.rows("ROLLBACK")

    assert await queue.get("a") is not None
    assert await queue.get("b") is None


async def test_listeners_are_notified_of_the_job_and_of_its_end(
    sql: SqlProgram, storage: PostgresStorage, schema: str, postgres_server: PostgresServer
) -> None:
    await storage.enqueue("q", [])
    listening = await psycopg.AsyncConnection.connect(postgres_server.url, autocommit=True)
    async with listening:
        await listening.execute(f"LISTEN {Queries(schema).channel}".encode())
        await sql.call("enqueue_job", queue="q", id="a")
        (job,) = await sql.calls("claim_jobs", queue="q")
        await sql.value("complete_job", queue="q", id="a", fence=job["fence"])
        heard = [note.payload async for note in listening.notifies(timeout=10, stop_after=2)]

    assert ["w", 'ei ["a"]'] == [text.partition(" ")[2].strip() for text in heard]


# -- claim, heartbeat and the ends -------------------------------------------------------------------------


async def test_a_claim_shows_the_job_and_its_lease(sql: SqlProgram, queue: Queue) -> None:
    await queue.enqueue({"to": "ada"}, id="a", attributes={"n": 1}, priority=1)
    await queue.enqueue([1], id="b")
    await queue.enqueue([2], id="later", delay=60)
    jobs = await sql.calls("claim_jobs", queue="q", max_jobs=5, holder="me")
    status = await queue.get("a")

    assert status is not None
    assert [("a", {"to": "ada"}, {"n": 1}, 1), ("b", [1], {}, 1)] == [
        (job["id"], job["payload"], job["attributes"], job["attempts"]) for job in jobs
    ]
    assert ("active", "me", jobs[0]["fence"]) == (status.state, status.holder, status.fence)
    assert {status.lease} == {job["lease"].hex for job in jobs}


async def test_a_claim_without_jobs_leaves_no_lease(sql: SqlProgram) -> None:
    assert [] == await sql.calls("claim_jobs", queue="q")
    assert [] == await sql.rows("SELECT * FROM {s}.leases")


async def test_the_longest_lease_that_a_job_sets_counts(sql: SqlProgram, queue: Queue) -> None:
    for id, lease in (("a", 600.0), ("b", 1.0)):
        await queue.enqueue(1, id=id, lease=lease)
    jobs = await sql.calls("claim_jobs", queue="q", max_jobs=2, ttl=timedelta(seconds=5))

    left = [job["lease_expires_at"] - datetime.now(UTC) for job in jobs]
    assert [True, True] == [timedelta(seconds=500) < one <= timedelta(seconds=600.1) for one in left]


async def test_an_expired_lease_is_lost_and_its_jobs_are_claimed_again(sql: SqlProgram, queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    (job,) = await sql.calls("claim_jobs", queue="q")
    alive = await sql.call("heartbeat", queue="q", lease=job["lease"], ttl=timedelta(minutes=5))
    assert alive["alive"]
    assert alive["expires_at"] > job["lease_expires_at"]
    assert [] == alive["cancel_requested"]
    await sql.rows("UPDATE {s}.leases SET expires_at = 1")

    lost = await sql.call("heartbeat", queue="q", lease=job["lease"])
    assert (False, None) == (lost["alive"], lost["expires_at"])
    (again,) = await sql.calls("claim_jobs", queue="q")
    assert ("a", 2, 1) == (again["id"], again["attempts"], again["stalls"])
    assert "lost" == await sql.value("complete_job", queue="q", id="a", fence=job["fence"])
    assert "done" == await sql.value("complete_job", queue="q", id="a", fence=again["fence"])


async def test_a_heartbeat_names_the_jobs_that_were_asked_to_stop(sql: SqlProgram, queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    (job,) = await sql.calls("claim_jobs", queue="q")
    assert "requested" == await sql.value("cancel_job", queue="q", id="a", running=True)

    assert ["a"] == (await sql.call("heartbeat", queue="q", lease=job["lease"]))["cancel_requested"]
    assert "cancelled" == await sql.value("release_job", queue="q", id="a", fence=job["fence"])


async def test_the_ends_are_those_of_a_claim_in_python(sql: SqlProgram, queue: Queue) -> None:
    statuses = {}
    for end in ("complete", "fail", "retry", "release"):
        await queue.enqueue(1, id=end)
        (job,) = await sql.calls("claim_jobs", queue="q")
        extra: Any = {
            "complete": {"result": Jsonb({"sent": 1})},
            "fail": {"error": "no such address", "error_type": "BadAddress"},
            "retry": {"delay": timedelta(hours=1), "error": "busy"},
            "release": {},
        }[end]
        answer = await sql.value(f"{end}_job", queue="q", id=end, fence=job["fence"], **extra)
        assert ("returned" if end in ("retry", "release") else "done") == answer
        statuses[end] = await queue.get(end)
        assert statuses[end] is not None
        await queue.cancel(end)

    complete, fail, retry, release = (status for status in statuses.values() if status)
    assert ("completed", {"sent": 1}) == (complete.state, complete.result)
    assert fail.error is not None
    assert ("failed", "BadAddress", "no such address", "error") == (
        fail.state,
        fail.error.type,
        fail.error.message,
        fail.error.kind,
    )
    assert retry.error is not None
    assert ("waiting", 1, "busy") == (retry.state, retry.retries, retry.error.message)
    assert ("waiting", 0, 0) == (release.state, release.attempts, release.retries)


async def test_a_retry_without_an_error_keeps_the_last_one(sql: SqlProgram, queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    for error in ({"error": "busy"}, {}):
        (job,) = await sql.calls("claim_jobs", queue="q")
        await sql.value("retry_job", queue="q", id="a", fence=job["fence"], **error)
    status = await queue.get("a")

    assert status is not None
    assert status.error is not None
    assert (2, "busy") == (status.retries, status.error.message)


@pytest.mark.parametrize(("size", "cut"), [(16_378, False), (16_379, True)])
async def test_a_long_error_is_cut_at_the_limit_of_the_contract(
    sql: SqlProgram, queue: Queue, size: int, *, cut: bool
) -> None:
    await queue.enqueue(1, id="a")
    (job,) = await sql.calls("claim_jobs", queue="q")
    await sql.value(
        "fail_job", queue="q", id="a", fence=job["fence"], error="é" * (size // 2) + "." * (size % 2)
    )
    status = await queue.get("a")

    assert status is not None
    assert status.error is not None
    assert cut == (CUT_MARK in status.error.message)
    assert len(status.error.message.encode()) <= size


async def test_a_hand_off_in_sql_is_finished_in_python_and_the_reverse(sql: SqlProgram, queue: Queue) -> None:
    await queue.enqueue(1, id="a")
    (job,) = await sql.calls("claim_jobs", queue="q")
    handed = await sql.call("hand_off_job", queue="q", id="a", fence=job["fence"])
    assert "handed_off" == handed["status"]
    assert "refused" == await sql.value("retry_job", queue="q", id="a", fence=job["fence"])
    assert "done" == await queue.finish("a", handed["revision"], "by Python")

    await queue.enqueue(1, id="b")
    async with queue.receive(wait=0) as claims:
        claim = await anext(claims)
        revision = await claim.hand_off()
    finish = {"queue": "q", "id": "b", "revision": revision}
    assert "lost" == await sql.value("finish_job", **{**finish, "revision": revision + 1})
    assert "done" == await sql.value("finish_job", **finish, result=Jsonb("by SQL"))
    assert "done" == await sql.value("finish_job", **finish)
    assert "lost" == await sql.value("finish_job", **finish, error="too late")
    ended = [await queue.get("a"), await queue.get("b")]
    assert ["by Python", "by SQL"] == [status.result for status in ended if status]


async def test_finish_answers_as_from_python(sql: SqlProgram, queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a")

    assert "not_found" == await sql.value("finish_job", queue="q", id="b", revision=1)
    assert "not_found" == await sql.value("finish_job", queue="unknown", id="b", revision=1)
    assert "refused" == await sql.value("finish_job", queue="q", id="a", revision=ticket.revision)


async def test_a_finish_without_a_result_is_none_in_python(sql: SqlProgram, queue: Queue) -> None:
    ticket = await queue.enqueue(1, id="a")
    async with queue.receive(wait=0) as claims:
        revision = await (await anext(claims)).hand_off()
    await sql.value("finish_job", queue="q", id="a", revision=revision)

    assert None is await ticket.result(wait=10)


async def test_amend_cancel_and_forget(sql: SqlProgram, queue: Queue) -> None:
    await queue.enqueue(1, id="a", attributes={"kept": 1, "step": 1}, max_retries=2)
    patch: dict[str, Any] = {
        "lease": timedelta(seconds=90),
        "attributes": Jsonb({"step": None}),
        "payload": Jsonb([2]),
        "priority": 5,
        "run_at": NOON,
    }
    assert "amended" == await sql.value("amend_job", queue="q", id="a", **patch)
    status = await queue.get("a")
    assert status is not None
    assert ({"kept": 1, "step": None}, [2], 5, NOON, {"lease": 90.0, "max_retries": 2}) == (
        status.attributes,
        status.data,
        status.priority,
        status.run_at,
        status.limits,
    )

    assert "amended" == await sql.value("amend_job", queue="q", id="a", delay=timedelta(0))
    status = await queue.get("a")
    assert status is not None
    assert (5, [2]) == (status.priority, status.data)
    assert "cancelled" == await sql.value("cancel_job", queue="q", id="a")
    assert "cancelled" == await sql.value("cancel_job", queue="q", id="a")
    assert await sql.value("forget_job", queue="q", id="a")
    assert not await sql.value("forget_job", queue="q", id="a")
    for function in ("amend_job", "cancel_job"):
        assert "not_found" == await sql.value(function, queue="q", id="a")


async def test_a_handled_failure_gets_a_fail_job_and_the_views_show_its_origin(
    sql: SqlProgram, queue: Queue
) -> None:
    await queue.enqueue({"n": 1}, id="a", attributes={"tenant": 7}, lease=90, max_retries=2)
    shown = await sql.row("SELECT * FROM {s}.jobs")
    assert (timedelta(seconds=90), {"lease": 90_000, "max_retries": 2}, None, None) == (
        shown["own_lease"],
        shown["overrides"],
        shown["origin"],
        shown["lease"],
    )
    (job,) = await sql.calls("claim_jobs", queue="q")
    assert job["lease"] == (await sql.row("SELECT lease FROM {s}.jobs"))["lease"]
    await sql.rows("SELECT {s}.configure('q', '{\"fail_handler\": true}', NULL)")
    await sql.value("fail_job", queue="q", id="a", fence=job["fence"], error="no")

    fail_job = await sql.row("SELECT * FROM {s}.jobs")
    wanted = {"queue": "q", "id": "a", "attempts": 1, "error_type": "Failed", "error_message": "no"}
    assert ("q!fail", {"n": 1}) == (fail_job["queue"], fail_job["payload"])
    assert wanted == {name: fail_job["origin"][name] for name in wanted}
    assert {"tenant": 7} == fail_job["origin"]["attributes"]
    assert {"tenant": 7} == (await sql.row("SELECT * FROM {s}.outcomes"))["attributes"]
    (claim,) = await sql.calls("claim_jobs", queue="q!fail")
    await sql.value("complete_job", queue="q!fail", id=claim["id"], fence=claim["fence"])
    done = await sql.row("SELECT * FROM {s}.outcomes WHERE queue = 'q!fail'")
    assert "a" == done["origin"]["id"]


async def test_a_payload_that_is_no_json_is_shown_as_bytes(sql: SqlProgram, storage: PostgresStorage) -> None:
    await storage.enqueue("q", [asked("a", b"\xff")])
    (job,) = await sql.calls("claim_jobs", queue="q")

    assert (None, b"\xff") == (job["payload"], job["payload_bytes"])
