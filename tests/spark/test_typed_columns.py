"""Payloads and results with types, and attributes without quotes, in tables that Spark reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict
from uuid import UUID

import pytest
from pyspark.sql.types import IntegerType

from dibs import Dibs
from dibs.errors import Refused
from dibs.spark import read
from dibs.spark.history.increments import update
from dibs.spark.typed_columns import parameter_types, spark_type
from dibs.storage.registry import open_storage
from tests.spark.source_storages import jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass
class Line:
    article: str
    count: int = 1


@dataclass
class Node:
    name: str
    below: list[Node]


class Address(TypedDict):
    city: str


class Size(Enum):
    SMALL = 1
    LARGE = 2


app = Dibs("memory:")


@app.task(queue="orders")
async def order(
    customer: str,
    lines: list[Line],
    total: float = 0.0,
    *,
    at: datetime | None = None,
    address: Address | None = None,
    proof: bytes = b"",
    price: Decimal = Decimal(0),
) -> Mapping[str, int]:
    return {"lines": len(lines)}


@app.task(queue="squares")
async def square(number: int) -> Line:
    return Line("square", number * number)


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (bool, "boolean"), (int, "bigint"), (float, "double"), (str, "string"), (bytes, "binary"),
        (datetime, "timestamp"), (date, "date"), (Decimal, "decimal(38,18)"), (UUID, "string"),
        (int | None, "bigint"), (int | float, "double"), (int | str, "string"), (Any, "string"),
        (list[int], "array<bigint>"), (set[str], "array<string>"), (tuple[int, ...], "array<bigint>"),
        (tuple[int, str], "string"), (dict[str, list[float]], "map<string,array<double>>"),
        (Literal["a", "b"], "string"), (Literal[1, 2], "bigint"), (Size, "bigint"),
        (Line, "struct<`article`: string, `count`: bigint>"), (Address, "struct<`city`: string>"),
        (Node, "struct<`name`: string, `below`: array<string>>"), (object, "string"),
    ],
    ids=str,
)  # fmt: skip
def test_the_type_of_a_hint_is(hint: Any, kind: str) -> None:
    assert kind == spark_type(hint)


def test_parameters_have_their_positions() -> None:
    def task(first: int, *rest: int, named: str, untyped=1, **others: int) -> None: ...  # type: ignore[no-untyped-def]

    assert {"first": (0, "bigint"), "named": (None, "string"), "untyped": (None, "string")} == (
        parameter_types(task)
    )


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """The URL of an empty storage, which the app uses."""
    url = f"file:{tmp_path}/jobs"
    async with open_storage(url) as storage:
        with app.override_storage(storage):
            yield url


def rows_of(frame: Any, *columns: str) -> dict[str, Any]:
    return {row.id: row[1:] for row in frame.select("id", *columns).collect()}


async def test_a_task_gives_the_payload_the_types_of_its_parameters(url: str, spark: SparkSession) -> None:
    moment = datetime(2026, 11, 20, 9, tzinfo=UTC)
    await order.options(id="all").enqueue(
        'ada "the" 1st',
        [Line("pen", 2)],
        3,
        at=moment,
        address={"city": "Köln"},
        proof=b"\0",
        price=Decimal("1.5"),
    )
    await order.options(id="named").enqueue(lines=[], customer="7")
    async with open_storage(url) as storage:
        await storage.enqueue("orders", jobs("no call", payload=b'{"customer": "ada"}'))
        await storage.enqueue("orders", jobs("list", payload=b"[1]"))

    frame = read(spark, "jobs", url=url, columns=["id"], payload_schema=order)
    found = {row.id: row.arguments and row.arguments.asDict(recursive=True) for row in frame.collect()}

    assert ["id", "arguments"] == frame.columns
    types = dict(frame.select("arguments.*").dtypes)
    assert ("timestamp", "decimal(38,18)") == (types["at"], types["price"])
    assert {
        "customer": 'ada "the" 1st', "lines": [{"article": "pen", "count": 2}], "total": 3.0,
        "at": moment.replace(tzinfo=None), "address": {"city": "Köln"}, "proof": bytearray(b"\0"),
        "price": Decimal("1.5"),
    } == found["all"]  # fmt: skip
    missing = dict.fromkeys(("total", "at", "address", "proof", "price"))
    assert {"customer": "7", "lines": [], **missing} == found["named"]
    assert all(value is None for value in found["no call"].values())
    assert found["list"] is None or all(value is None for value in found["list"].values())


async def test_a_schema_gives_payloads_types_and_attributes_lose_their_quotes(
    url: str, spark: SparkSession
) -> None:
    queue = app.queue("mail")
    attributes = {"country": "de", "tries": 3, "text": 'a "b"\n', "none": None, "list": [1, "2"]}
    await queue.enqueue({"to": "ada", "n": 2**40}, id="fits", attributes=attributes)
    await queue.enqueue({"to": ["ada"], "n": "two"}, id="misfit")

    frame = read(spark, "jobs", url=url, payload_schema="to string, n bigint", attributes="text")
    found = rows_of(frame, "data", "attributes")

    assert (("ada", 2**40), {**attributes, "tries": "3", "none": "null", "list": '[1,"2"]'}) == found["fits"]
    assert (('["ada"]', None), {}) == found["misfit"]
    plain = read(spark, "jobs", url=url, columns=["id", "attributes"])
    assert {'"de"'} == {row.attributes["country"] for row in plain.where("id = 'fits'").collect()}
    numbers = read(spark, "jobs", url=url, columns=["id"], payload_schema=IntegerType())
    assert {"fits": (None,), "misfit": (None,)} == rows_of(numbers, "data")


async def test_results_have_types_in_a_storage_and_in_a_warehouse(
    url: str, spark: SparkSession, tmp_path: Path
) -> None:
    await app.queue("squares").configure(log_results=1000)
    await square.options(id="a").enqueue(3)
    await app.work(until="empty")
    warehouse = tmp_path / "warehouse"

    outcomes = read(spark, "outcomes", url=url, columns=["id"], result_schema=square)
    update(url, warehouse, engine="duckdb")
    events = read(warehouse, "events", result_schema="article string, `count` int").where(
        "kind = 'completed'"
    )

    assert {"a": (("square", 9),)} == rows_of(outcomes, "result_data") == rows_of(events, "result_data")


def test_an_unfit_schema_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    url = f"file:{tmp_path}/jobs"
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("jobs", {"payload_schema": "to strange"}, "payload_schema is 'to strange'; write it as DDL"),
        ("events", {"payload_schema": "n int"}, "table events has no payload"),
        ("runs", {"result_schema": "n int"}, "table runs has no result"),
        ("jobs", {"attributes": "plain"}, "attributes is 'plain'; it must be json or text"),
        ("events", {"attributes": "text"}, "table events has no attributes"),
    ]
    for table, options, message in cases:
        with pytest.raises(Refused, match=message):
            read(spark, table, url=url, **options)
