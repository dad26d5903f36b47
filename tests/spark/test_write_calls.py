"""The calls of a task that writes: their sizes, and rows that the storage refuses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dibs.errors import BatchRefused, Refused
from dibs.model.request_columns import RequestColumns, make_member
from dibs.spark.source import partition_writer
from dibs.spark.source.options import write_options
from dibs.spark.source.partition_writer import KeySetSink, RequestSink, WriteTask, write_partition
from tests.spark.source_storages import at, records
from tests.storage_urls import new_url


def columns_of(sizes: Sequence[int]) -> RequestColumns:
    return RequestColumns(
        ids=[str(number) for number in range(len(sizes))],
        payloads=[b"x" * size for size in sizes],
        members=[make_member(b"x" * 12, number) for number in range(len(sizes))],
    )


@pytest.mark.parametrize(
    ("sizes", "calls"),
    [
        ([], []),
        ([1] * 1000, [(0, 1000)]),
        ([1] * 2500, [(0, 1000), (1000, 2000), (2000, 2500)]),
        ([60, 40, 1], [(0, 2), (2, 3)]),
        ([60, 41, 59, 1], [(0, 1), (1, 3), (3, 4)]),
        ([500, 500], [(0, 1), (1, 2)]),
    ],
)
def test_a_call_has_a_limit_of_rows_and_of_bytes(
    sizes: list[int], calls: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_writer, "MAX_CALL_BYTES", 100 if max(sizes, default=0) > 1 else 10_000)

    assert calls == list(partition_writer._split_into_calls(columns_of(sizes)))


@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_rows_that_the_storage_refuses_are_rejected(
    scheme: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage refuses two rows, after an invalid one. It has the strictest limits of all storages."""
    url = new_url(scheme, request)
    ids = ["", *"abcd", "long 1", "e", "long 2", "f"]
    table = pa.table({"id": ids, "payload": [b"1"] * len(ids)})
    refuse_long_ids(monkeypatch)
    options = write_options({"url": url, "queue": "work", "rejects": str(tmp_path)})

    report = write_partition(options, WriteTask("run", 0, 0), table.to_batches())

    assert (9, 3, {"queued": 6}) == (report.rows, report.rejected, dict(report.statuses))
    assert set("abcdef") == set(at(url, lambda storage: records(storage, "work")))
    rejected = pq.read_table(tmp_path).to_pylist()
    assert [("", "id"), ("long 1", "id"), ("long 2", "id")] == sorted(
        (row["id"], row["reject_field"]) for row in rejected
    )


def test_a_refusal_without_rows_fails_the_write(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(sink: KeySetSink, columns: RequestColumns) -> Any:
        raise BatchRefused("the queue", [Refused("no", field="queue")])

    monkeypatch.setattr(KeySetSink, "enqueue", refuse)
    url = new_url("redis", request)
    table = pa.table({"id": ["a"], "payload": [b"1"]})

    with pytest.raises(BatchRefused):
        write_partition(
            write_options({"url": url, "queue": "work", "rejects": str(tmp_path)}),
            WriteTask("run", 0, 0),
            table.to_batches(),
        )


def refuse_long_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make both sinks refuse ids of more than 5 letters."""

    def refuse(columns: RequestColumns) -> None:
        bad = [
            Refused(f"{id} is too long", field="id", index=index)
            for index, id in enumerate(columns.ids)
            if len(id) > 5
        ]
        if bad:
            raise BatchRefused("some rows", bad)

    for kind in (KeySetSink, RequestSink):
        send: Any = kind.enqueue

        def checked(sink: Any, columns: RequestColumns, send: Any = send) -> Any:
            refuse(columns)
            return send(sink, columns)

        monkeypatch.setattr(kind, "enqueue", checked)
