"""The tables of a warehouse: two writers, old files and rows, and errors, in a folder and on S3."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from dibs.errors import DibsError, Refused, StorageDamaged, StorageTooNew, StorageUnavailable
from dibs.spark.history import warehouse
from dibs.spark.history.tables import TableRows, table_schema
from dibs.spark.history.warehouse import FORMAT, STATE_KEY, State, Warehouse, WarehouseBusy
from tests.spark.warehouse_rows import add_rows, rows

BEGIN = datetime(2026, 11, 20, tzinfo=UTC)


def add(location: str | Path, *days: int, source: str = "file:jobs") -> Warehouse:
    """Add an event and a row of metrics for each day."""
    moments = [BEGIN + timedelta(days=day) for day in days]
    return add_rows(
        location,
        State(source=source),
        events=[{"queue": "mail", "offset": f"{at:%d}", "id": "a", "at": at} for at in moments],
        metrics=[{"queue": "mail", "minute": at, "attempts": 1} for at in moments],
    )


def files_of(table: warehouse.HistoryTable) -> int:
    return len(table.rows().files)


def test_a_reader_keeps_the_version_that_it_opened(location: str) -> None:
    add(location, 0)
    opened = Warehouse(location)
    add(location, 1)

    assert (1, 2) == (opened.generation, Warehouse(location).generation)
    assert (1, 2) == (opened.events.rows().dataset().count_rows(), Warehouse(location).events.count())
    assert {("mail", "20"): 1, ("mail", "21"): 2} == {
        key: row["increment"] for key, row in rows(location, "events").items()
    }


def test_the_second_of_two_writers_changes_nothing(location: str) -> None:
    add(location, 0)
    slow = Warehouse(location)
    add(location, 1)
    empty = TableRows("events-read")

    with pytest.raises(WarehouseBusy, match="Repeat it"):
        slow.events.append(State(), empty, increment=2)
    with pytest.raises(WarehouseBusy, match="Repeat it"):
        slow.metrics.replace(State(), TableRows("metrics"), "minute >= '2026-11-20T00:00:00Z'")
    assert (2, 2) == (Warehouse(location).events.count(), Warehouse(location).metrics.count())
    assert 2 == Warehouse(location).events.state.increment


def test_an_empty_commit_holds_its_state(location: str) -> None:
    tables = Warehouse(location, create=True)
    tables.events.append(State(increment=1, offsets={"mail": "7"}), TableRows("events-read"), increment=1)

    assert {"mail": "7"} == Warehouse(location).events.state.offsets


def test_small_files_are_merged_and_replaced_files_are_kept_for_an_hour(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(4):
        add(tmp_path, day)
    tables = add(tmp_path, 4)
    before = rows(tmp_path, "events")
    monkeypatch.setattr(warehouse, "MAINTAIN_EVERY", 2)
    tables.maintain(tables.generation - 2, None, 0)
    on_disk = [*(tmp_path / "events").glob("*.parquet")]

    assert (1, 6) == (files_of(Warehouse(tmp_path).events), len(on_disk))
    assert before == rows(tmp_path, "events")
    monkeypatch.setattr(warehouse, "KEEP_HOURS", 0)
    tables.maintain(tables.generation - 2, None, 0)

    assert [*map(str, tmp_path.glob("events/*.parquet"))] == Warehouse(tmp_path).events.rows().files
    assert State(source="file:jobs", increment=5) == Warehouse(tmp_path).events.state


def test_files_of_killed_writers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = add(tmp_path, 0)
    orphan = tmp_path / "events" / "part-00000-killed.snappy.parquet"
    orphan.write_bytes(b"PAR1")
    tables.events.maintain()
    young = orphan.exists()
    monkeypatch.setattr(warehouse, "KEEP_ORPHANS_HOURS", 0)
    tables.events.maintain()

    assert (True, False) == (young, orphan.exists())


def test_rows_are_kept_for_the_given_time(location: str) -> None:
    tables = add(location, *range(9))
    add(location, 9, 10)
    now = round((BEGIN + timedelta(days=10)).timestamp() * 1000)
    tables = Warehouse(location)
    tables.maintain(0, 4 * 86_400_000, now)
    tables = Warehouse(location)
    commits = tables.events.delta.version()
    tables.maintain(0, 4 * 86_400_000, now + 3_600_000)

    assert [26, 27, 28, 29, 30] == sorted(int(offset) for _, offset in rows(location, "events"))
    assert 5 == Warehouse(location).metrics.count()
    assert commits == Warehouse(location).events.delta.version()
    assert 2 == Warehouse(location).events.state.increment


def test_the_state_is_found_behind_commits_of_other_programs(tmp_path: Path) -> None:
    add(tmp_path, 0)
    DeltaTable(tmp_path / "events").optimize.compact()
    write_deltalake(tmp_path / "events", table_schema("events").empty_table(), mode="append")

    assert "file:jobs" == Warehouse(tmp_path).events.state.source


# -- errors ------------------------------------------------------------------------------------------


def test_a_missing_warehouse_names_the_command_that_creates_one(location: str) -> None:
    with pytest.raises(Refused, match="dibs spark history"):
        Warehouse(location)


@pytest.mark.parametrize(
    ("location", "error"),
    [
        ("ftp://host/history", "schemes"),
        ("s3://", "names no bucket"),
    ],
)
def test_a_url_of_no_store_is_refused(location: str, error: str) -> None:
    with pytest.raises(Refused, match=error):
        Warehouse(location)


def test_an_object_store_that_refuses_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket on a port where no server listens."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "other")
    with pytest.raises(StorageUnavailable, match=r"cannot open .*s3://nowhere/history/metrics"):
        Warehouse("s3://nowhere/history")


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(DibsError, match="cannot open the table"):
        Warehouse(tmp_path / "file", create=True)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (msgspec.json.encode({"format": FORMAT + 1, "offsets": 3}).decode(), StorageTooNew),
        ('{"format": 2, "offs', StorageDamaged),
        ("[]", StorageDamaged),
    ],
)
def test_a_state_that_cannot_be_trusted_is_refused(
    tmp_path: Path, state: str, error: type[Exception]
) -> None:
    add(tmp_path, 0)
    write_deltalake(
        tmp_path / "metrics",
        table_schema("metrics").empty_table(),
        mode="append",
        commit_properties=CommitProperties(custom_metadata={STATE_KEY: state}),
    )

    with pytest.raises(error):
        Warehouse(tmp_path)
