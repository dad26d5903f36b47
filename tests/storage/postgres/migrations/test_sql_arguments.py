"""Bad arguments of the functions for SQL: the error names the argument, and no row is written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from psycopg import errors
from psycopg.types.json import Jsonb

from dibs import Queue
from tests.storage.postgres.sql_programs import SqlProgram

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)
DEEP: Any = 1
for _ in range(65):
    DEEP = [DEEP]
BIG = "x" * 1024 * 1024
JOB: dict[str, Any] = {"queue": "q", "id": "a"}
#: Function, arguments, the argument that the error names, and a part of its message.
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("enqueue_job", {"queue": ""}, "queue", "0 bytes"),
    ("enqueue_job", {"queue": None}, "queue", "NULL"),
    ("enqueue_job", {"queue": "é" * 251}, "queue", "502 bytes"),
    ("enqueue_job", {"queue": "q!fail"}, "queue", "fail queue"),
    ("enqueue_job", {"queue": "dibs.workers"}, "queue", "reserved"),
    ("enqueue_job", {"queue": "q", "id": ""}, "id", "0 bytes"),
    ("enqueue_job", {"queue": "q", "id": "x" * 513}, "id", "513 bytes"),
    ("enqueue_job", {**JOB, "payload": Jsonb(BIG)}, "payload", "1048576"),
    ("enqueue_job", {**JOB, "payload": Jsonb(DEEP)}, "payload", "deeper than 64"),
    ("enqueue_job", {**JOB, "payload": Jsonb({"x": DEEP[0]})}, "payload", "deeper than 64"),
    ("enqueue_job", {**JOB, "priority": 1001}, "priority", "-1000 to 1000"),
    ("enqueue_job", {**JOB, "key": ""}, "key", "1 to 128"),
    ("enqueue_job", {**JOB, "key": "é" * 65}, "key", "1 to 128"),
    ("enqueue_job", {**JOB, "priority": -1001}, "priority", "-1000 to 1000"),
    ("enqueue_job", {**JOB, "priority": None}, "priority", "NULL"),
    ("enqueue_job", {**JOB, "run_at": NOON, "delay": timedelta(1)}, "run_at", "set at most one"),
    ("enqueue_job", {**JOB, "run_at": datetime(1969, 12, 31, tzinfo=UTC)}, "run_at", "1970"),
    ("enqueue_job", {**JOB, "run_at": datetime(9999, 1, 1, tzinfo=UTC)}, "run_at", "9998"),
    ("enqueue_job", {**JOB, "delay": timedelta(seconds=-1)}, "delay", "0 seconds"),
    ("enqueue_job", {**JOB, "delay": timedelta(days=100_000, seconds=1)}, "delay", "100,000 days"),
    ("enqueue_job", {**JOB, "attributes": Jsonb([1])}, "attributes", "array"),
    ("enqueue_job", {**JOB, "attributes": Jsonb({"": 1})}, "attributes", "empty name"),
    ("enqueue_job", {**JOB, "attributes": Jsonb({"x": "y" * 65_536})}, "attributes", "65536"),
    ("enqueue_job", {**JOB, "attributes": Jsonb({"x": DEEP})}, "attributes", "deeper than 64"),
    ("enqueue_job", {**JOB, "attributes": Jsonb({"x": [2**53 + 1]})}, "attributes", "2**53"),
    ("enqueue_job", {**JOB, "request_key": ""}, "request_key", "0 bytes"),
    ("enqueue_job", {**JOB, "request_key": "x" * 129}, "request_key", "129 bytes"),
    ("enqueue_job", {**JOB, "on_conflict": "Reject"}, "on_conflict", "reject_failed"),
    ("enqueue_job", {**JOB, "on_conflict": None}, "on_conflict", "reject_failed"),
    ("enqueue_job", {**JOB, "lease": timedelta(0)}, "lease", "1 ms"),
    ("enqueue_job", {**JOB, "timeout": timedelta(-1)}, "timeout", "1 ms"),
    ("enqueue_job", {**JOB, "max_retries": -1}, "max_retries", "0 to"),
    ("enqueue_job", {**JOB, "retention": timedelta(-1)}, "retention", "0 seconds"),
    ("signal_job", {**JOB, "queue": "", "name": "n"}, "queue", "0 bytes"),
    ("signal_job", {"queue": "q", "id": None, "name": "n"}, "id", "NULL"),
    ("signal_job", {**JOB, "name": ""}, "name", "0 bytes"),
    ("signal_job", {**JOB, "name": "x" * 97}, "name", "1 to 96"),
    ("signal_job", {**JOB, "name": "n", "value": Jsonb("x" * 65_000)}, "value", "1 to 65000"),
    ("signal_job", {**JOB, "name": "n", "request_key": ""}, "request_key", "0 bytes"),
    ("claim_jobs", {"queue": ""}, "queue", "0 bytes"),
    ("claim_jobs", {"queue": "q", "max_jobs": 0}, "max_jobs", "1 to 1000000"),
    ("claim_jobs", {"queue": "q", "ttl": timedelta(0)}, "ttl", "1 ms"),
    ("claim_jobs", {"queue": "q", "holder": ""}, "holder", "0 bytes"),
    ("heartbeat", {"queue": "q", "lease": None}, "lease", "claim_jobs"),
    ("complete_job", {**JOB, "fence": None}, "fence", "NULL"),
    ("complete_job", {**JOB, "fence": 1, "result": Jsonb(BIG)}, "result", "1048576"),
    ("complete_job", {**JOB, "fence": -1}, "fence", "0 to"),
    ("fail_job", {**JOB, "fence": 1, "error": "no", "error_type": ""}, "error_type", "0 bytes"),
    ("retry_job", {**JOB, "fence": 1, "delay": timedelta(-1)}, "delay", "0 seconds"),
    ("release_job", {"queue": "q", "id": None, "fence": 1}, "id", "NULL"),
    ("hand_off_job", {**JOB, "fence": 2**53 + 1}, "fence", "0 to"),
    ("finish_job", {**JOB, "revision": None}, "revision", "NULL"),
    ("finish_job", {**JOB, "revision": 1, "result": Jsonb(1), "error": "no"}, "result", "set at most one"),
    ("finish_job", {**JOB, "revision": 1, "result": Jsonb(DEEP)}, "result", "deeper than 64"),
    ("cancel_job", {"queue": "q", "id": ""}, "id", "0 bytes"),
    ("amend_job", {**JOB, "priority": 5000}, "priority", "-1000 to 1000"),
    ("amend_job", {**JOB, "lease": timedelta(0)}, "lease", "1 ms to 100,000 days"),
    ("amend_job", {**JOB, "attributes": Jsonb("x")}, "attributes", "string"),
    ("amend_job", {**JOB, "run_at": NOON, "delay": timedelta(1)}, "run_at", "set at most one"),
    ("forget_job", {"queue": "q", "id": None}, "id", "NULL"),
]


@pytest.mark.parametrize(("function", "arguments", "field", "reason"), REFUSED)
async def test_bad_input_names_the_argument_and_writes_nothing(
    sql: SqlProgram, function: str, arguments: dict[str, Any], field: str, reason: str
) -> None:
    with pytest.raises(errors.InvalidParameterValue) as refused:
        await sql.call(function, **arguments)

    assert field == refused.value.diag.column_name
    message = refused.value.diag.message_primary
    assert message is not None
    assert message.startswith(f"{field} ")
    assert reason in message
    for table in ("queues", "live", "ended", "leases"):
        assert [] == await sql.rows(f"SELECT 1 FROM {{s}}.{table}")


@pytest.mark.parametrize("time", ["infinity", "-infinity"])
async def test_an_infinite_time_is_refused(sql: SqlProgram, time: str) -> None:
    with pytest.raises(errors.InvalidParameterValue, match="run_at"):
        await sql.rows(f"SELECT {{s}}.enqueue_job('q', run_at => '{time}')")


async def test_what_is_just_within_the_limits_is_taken(sql: SqlProgram, queue: Queue) -> None:
    arguments = {
        "queue": "é" * 250,
        "id": "x" * 512,
        "payload": Jsonb(DEEP[0]),
        "attributes": Jsonb({"x": DEEP[0], "n": -(2**53), "y": 0.5}),
        "request_key": "x" * 128,
        "delay": timedelta(days=100_000),
    }
    await sql.call("enqueue_job", **arguments)
    row = await sql.row("SELECT id, payload FROM {s}.jobs")

    assert ("x" * 512, DEEP[0]) == (row["id"], row["payload"])


async def test_attributes_that_grow_beyond_the_limit_are_refused(sql: SqlProgram, queue: Queue) -> None:
    await queue.enqueue(1, id="a", attributes={"x": "y" * 40_000})
    with pytest.raises(errors.InvalidParameterValue, match=r"attributes have .* after the merge"):
        await sql.value("amend_job", queue="q", id="a", attributes=Jsonb({"z": "y" * 40_000}))

    status = await queue.get("a")
    assert status is not None
    assert {"x"} == set(status.attributes)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("function", ["enqueue_job", "claim_jobs"])
async def test_a_transaction_that_sees_an_old_state_is_refused(
    sql: SqlProgram, level: str, function: str
) -> None:
    await sql.rows(f"BEGIN ISOLATION LEVEL {level}")
    with pytest.raises(errors.InvalidTransactionState, match="READ COMMITTED"):
        await sql.call(function, queue="q")
    await sql.rows("ROLLBACK")
