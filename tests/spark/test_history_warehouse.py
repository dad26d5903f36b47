"""The generations of a warehouse, in a local folder and on an S3 server; files have arbitrary rows."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import msgspec
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from dibs.errors import Refused, StorageDamaged, StorageTooNew, StorageUnavailable
from dibs.spark.history.warehouse import draft
from dibs.spark.history.warehouse.draft import MAX_SMALL_FILES, WarehouseBusy
from dibs.spark.history.warehouse.manifest import FORMAT, TablePartition, folder_name
from dibs.spark.history.warehouse.store import LocalStore, RemoteStore, Store, open_store
from dibs.spark.history.warehouse.warehouse import Warehouse
from dibs.version import VERSION
from tests.spark.staged_tables import MAIL, NEXT, add, counts, stage


def test_added_files_join_the_existing_ones(location: str) -> None:
    add(location, MAIL, NEXT)
    now = add(location, MAIL)

    assert {MAIL: 2, NEXT: 1} == counts(location)
    assert (2, 2) == (now.horizon, now.generation)


def test_a_reader_keeps_the_generation_that_it_opened(location: str) -> None:
    add(location, MAIL)
    before = Warehouse.existing(location)
    with Warehouse(location).open_draft() as new:
        new.replace("runs", [MAIL], stage(new, "runs", MAIL, NEXT))
        new.commit(new.before)

    ((file,),) = before.files("runs").values()
    assert 0 < before.store.local_copy(file.path).stat().st_size
    assert {MAIL: 1, NEXT: 1} == counts(location)


def test_a_replacement_removes_all_files_of_its_partitions(location: str) -> None:
    add(location, MAIL, NEXT)
    with Warehouse(location).open_draft() as new:
        new.replace("runs", [MAIL, NEXT], stage(new, "runs", NEXT))
        new.commit(new.before)

    assert {NEXT: 1} == counts(location)


def test_odd_names_of_queues_are_kept(location: str) -> None:
    odd = TablePartition("007 / ü=%", "2026-11-20")
    add(location, odd)

    assert {odd: 1} == counts(location)


@pytest.mark.parametrize("char", ["a", "ü", "%", "\x01", "🐘"])
def test_every_queue_has_a_folder_of_its_own(tmp_path: Path, char: str) -> None:
    """A short name is used unchanged, a longer name ends in a hash, and all folder names are different."""
    most, is_escaped = 500 // len(char.encode()), char in "%\x01"
    folders = {name: folder_name(name) for name in (char * n for n in range(1, most + 1))}

    assert char == folders[char]
    assert most == len(set(folders.values()))
    for name, folder in folders.items():
        # Spark escapes each of these characters as three.
        escaped = quote(folder, safe="~") if is_escaped else folder
        (tmp_path / f"queue={escaped}").mkdir()
        assert folder == name or folder.startswith(name[:50] + "~")


def test_an_uncommitted_draft_has_no_effect(location: str, tmp_path: Path) -> None:
    add(location, MAIL)
    with pytest.raises(RuntimeError), Warehouse(location).open_draft() as new:  # noqa: PT012
        new.add("runs", stage(new, "runs", NEXT))
        raise RuntimeError

    assert {MAIL: 1} == counts(location)
    assert not (tmp_path / "warehouse" / "staging").exists()


def test_a_partition_with_many_small_files_is_compacted(location: str) -> None:
    for _ in range(MAX_SMALL_FILES + 1):
        add(location, MAIL)
    with Warehouse(location).open_draft() as new:
        files = new.files_to_compact("runs")
        new.compact("runs", files, stage(new, "merged", MAIL))
        new.commit(new.before)

    assert MAX_SMALL_FILES + 1 == len(files)
    assert {MAIL: 1} == counts(location)


def test_a_large_file_is_merged_once_the_smaller_ones_have_a_quarter_of_its_size(location: str) -> None:
    """If it were merged earlier, each increment with few rows would write the large file again."""

    def add_rows(rows: int) -> list[int]:
        """Add a file, and return the numbers of rows of the files that are merged, in order."""
        with Warehouse(location).open_draft() as new:
            new.add("runs", stage(new, "runs", MAIL, rows=rows))
            files = new.files_to_compact("runs")
            merged = sorted(pq.read_metadata(file).num_rows for file in files)
            if files:
                new.compact("runs", files, stage(new, "merged", MAIL, rows=sum(merged)))
            new.commit(new.before)
            return merged

    merges = [add_rows(rows) for rows in (100_000, *[1_000] * 80)]

    assert 100_000 == sum(file.rows for file in Warehouse.existing(location).files("runs")[MAIL]) - 80_000
    assert [1_000] * 8 == next(filter(None, merges))
    with_the_large_one = [sum(merged) - 100_000 for merged in merges if 100_000 in merged]
    assert 1 == len(with_the_large_one)
    assert 20_000 <= with_the_large_one[0] < 40_000
    assert MAX_SMALL_FILES >= counts(location)[MAIL]


def test_each_attempt_has_a_folder_of_its_own(location: str) -> None:
    """Java may still write into the folder of an attempt whose Python process was killed."""
    folders = []
    for _ in range(2):
        with Warehouse(location).open_draft() as new:
            folders.append(new.staging("runs"))

    assert folders[0] != folders[1]


# -- two writers -------------------------------------------------------------------------------------


def test_one_process_writes_to_a_folder_at_a_time(tmp_path: Path) -> None:
    with Warehouse(tmp_path).open_draft(), pytest.raises(WarehouseBusy, match="another process"):  # noqa: SIM117
        with Warehouse(tmp_path).open_draft():
            pass


def test_the_second_commit_of_a_generation_changes_nothing(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a folder, the lock is taken away, as on a file system that ignores locks."""
    monkeypatch.setattr("dibs.spark.history.warehouse.warehouse.FileLock.acquire", lambda _lock: None)
    add(location, MAIL)
    with Warehouse(location).open_draft() as slow:
        with Warehouse(location).open_draft() as fast:
            fast.add("runs", stage(fast, "runs", MAIL))
            fast.commit(fast.before)
        slow.add("runs", stage(slow, "runs", NEXT))
        with pytest.raises(WarehouseBusy, match="Repeat it"):
            slow.commit(slow.before)

    assert {MAIL: 2} == counts(location)
    assert 2 == len(open_store(location).list_files("data"))


def test_a_writer_that_slept_until_its_rival_was_deleted_is_refused(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dibs.spark.history.warehouse.warehouse.FileLock.acquire", lambda _lock: None)
    monkeypatch.setattr(draft, "KEEP_SECONDS", 0)
    with Warehouse(location).open_draft() as slow:
        for _ in range(3):
            add(location, MAIL)
        with pytest.raises(WarehouseBusy, match="Repeat it"):
            slow.commit(slow.before)

    assert {MAIL: 3} == counts(location)


def test_a_lost_reply_of_the_commit_is_no_other_writer(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of S3 repeats a request whose reply was lost, and is then told that the file exists."""
    kind = type(open_store(location))
    create = kind.create

    def create_twice(store: Store, path: str, content: bytes) -> None:
        create(store, path, content)
        create(store, path, content)

    add(location, MAIL)
    monkeypatch.setattr(kind, "create", create_twice)
    add(location, MAIL)

    assert {MAIL: 2} == counts(location)


def test_a_store_that_overwrites_is_refused(s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some servers ignore `If-None-Match`."""

    def overwrite(store: RemoteStore, path: str, content: bytes) -> None:
        store._fs.pipe_file(store._path(path), content)

    monkeypatch.setattr(RemoteStore, "create", overwrite)
    with pytest.raises(Refused, match="conditional writes"):
        add(f"{s3_bucket}/overwriting", MAIL)


def test_a_file_system_without_hard_links_renames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(_old: object, _new: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    add(tmp_path, MAIL)
    with pytest.raises(FileExistsError):
        LocalStore(tmp_path).create("manifests/000000000001.json", b"")

    assert {MAIL: 1} == counts(tmp_path)


# -- old generations ---------------------------------------------------------------------------------


def test_a_replaced_generation_is_kept_for_an_hour(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def replace_all() -> None:
        with Warehouse(location).open_draft() as new:
            new.replace("runs", [MAIL], stage(new, "runs", MAIL))
            new.commit(new.before)

    store = open_store(location)
    for _ in range(3):
        replace_all()
    assert (3, 3) == (len(store.list_files("manifests")), len(store.list_files("data")))

    monkeypatch.setattr(draft, "KEEP_SECONDS", 0)
    replace_all()

    assert (1, 1) == (len(store.list_files("manifests")), len(store.list_files("data")))
    assert {MAIL: 1} == counts(location)


def test_old_files_that_no_generation_names_are_removed(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft, "SEARCH_EVERY", 1)
    store = open_store(location)
    add(location, MAIL)
    with Warehouse(location).open_draft() as killed:
        killed.add("runs", stage(killed, "runs", NEXT))
        killed._put("runs", 2)
    add(location, MAIL)
    young = len(store.list_files("data"))
    monkeypatch.setattr(draft, "ORPHAN_SECONDS", -1)
    add(location, MAIL)

    assert (3, 3) == (young, len(store.list_files("data")))
    assert {MAIL: 3} == counts(location)


# -- errors ------------------------------------------------------------------------------------------


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()

    with pytest.raises(Refused, match="holds other files"), Warehouse(tmp_path).open_draft():
        pass


def test_a_missing_warehouse_names_the_command_that_creates_one(location: str) -> None:
    with pytest.raises(Refused, match="dibs spark history"):
        Warehouse.existing(location)


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
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)
    monkeypatch.setattr("s3fs.S3FileSystem.cachable", False)
    with pytest.raises(StorageUnavailable, match=r"cannot read s3://nowhere/history: .*127\.0\.0\.1:9"):
        Warehouse("s3://nowhere/history")


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (msgspec.json.encode({"format": FORMAT + 1, "offsets": 3}), StorageTooNew),
        (b'{"format": 2, "offs', StorageDamaged),
        (b"[]", StorageDamaged),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused(
    tmp_path: Path, raw: bytes, error: type[Exception]
) -> None:
    add(tmp_path, MAIL)
    (tmp_path / "manifests" / "000000000001.json").write_bytes(raw)

    with pytest.raises(error):
        Warehouse(tmp_path)


def test_a_manifest_names_its_format(location: str) -> None:
    now = add(location, MAIL)
    assert (FORMAT, VERSION) == (now.format, now.version)
    assert now == Warehouse(location).manifest == replace(now)
