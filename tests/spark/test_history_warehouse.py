"""The atomic changes of a warehouse, without Spark: its files contain arbitrary text."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from msgspec.structs import replace

from dibs.errors import Refused, StorageDamaged, StorageTooNew
from dibs.spark.history.warehouse import (
    FORMAT,
    KEPT_GENERATIONS,
    MAX_SMALL_FILES,
    Draft,
    TablePartition,
    Warehouse,
    WarehouseState,
    folder_name,
)

MAIL = TablePartition("mail", "2026-11-20")
NEXT = TablePartition("mail", "2026-11-21")


def stage(draft: Draft, name: str, *parts: TablePartition, text: str = "rows") -> Path:
    folder = draft.staging(name)
    for part in parts:
        partition_folder = folder / f"queue={part.queue}" / f"date={part.date}"
        partition_folder.mkdir(parents=True)
        number = len(list((draft.before.root / "generations").iterdir()))
        (partition_folder / f"part-{number}-{name}-{os.urandom(4).hex()}.parquet").write_text(text)
        (partition_folder / "_SUCCESS").touch()
    return folder


def added(root: Path, *parts: TablePartition, text: str = "rows") -> Warehouse:
    with Warehouse(root).open_draft() as draft:
        draft.add("runs", stage(draft, "runs", *parts, text=text))
        return draft.commit(replace(draft.before.state, horizon=draft.before.state.horizon + 1))


def counts(warehouse: Warehouse) -> dict[TablePartition, int]:
    return {part: len(files) for part, files in warehouse.files("runs").items()}


def test_added_files_join_the_existing_ones(tmp_path: Path) -> None:
    added(tmp_path, MAIL, NEXT)
    now = added(tmp_path, MAIL)

    assert {MAIL: 2, NEXT: 1} == counts(now)
    assert 2 == now.state.horizon
    assert {MAIL: 2, NEXT: 1} == counts(Warehouse.existing(tmp_path))


def test_readers_read_through_a_link_that_moves(tmp_path: Path) -> None:
    added(tmp_path, MAIL)
    before = Warehouse.existing(tmp_path)
    added(tmp_path, MAIL)

    assert 2 == len([*(tmp_path / "runs").rglob("*.parquet")])
    assert 1 == sum(counts(before).values())


def test_a_replacement_removes_all_files_of_its_partitions(tmp_path: Path) -> None:
    added(tmp_path, MAIL, NEXT)
    with Warehouse(tmp_path).open_draft() as draft:
        draft.replace("runs", [MAIL, NEXT], stage(draft, "runs", NEXT))
        now = draft.commit(draft.before.state)

    assert {NEXT: 1} == counts(now)


def test_escaped_names_of_queues_are_decoded(tmp_path: Path) -> None:
    odd = TablePartition("007 / ü=%", "2026-11-20")
    with Warehouse(tmp_path).open_draft() as draft:
        folder = draft.staging("runs") / "queue=007 %2F ü%3D%25" / f"date={odd.date}"
        folder.mkdir(parents=True)
        (folder / "part.parquet").touch()
        draft.add("runs", draft.staging("runs"))
        now = draft.commit(WarehouseState())

    assert {odd: 1} == counts(now)


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


def test_an_uncommitted_draft_has_no_effect(tmp_path: Path) -> None:
    added(tmp_path, MAIL)
    with pytest.raises(RuntimeError), Warehouse(tmp_path).open_draft() as draft:  # noqa: PT012
        draft.add("runs", stage(draft, "runs", NEXT))
        raise RuntimeError

    assert {MAIL: 1} == counts(Warehouse.existing(tmp_path))
    assert not (tmp_path / "staging").exists()


def test_a_generation_that_never_became_current_is_deleted(tmp_path: Path) -> None:
    added(tmp_path, MAIL)
    left = tmp_path / "generations" / "000000000002" / "runs"
    left.mkdir(parents=True)
    now = added(tmp_path, MAIL)

    assert "000000000002" == now.folder.name
    assert {MAIL: 2} == counts(now)


def test_only_the_last_generations_are_kept(tmp_path: Path) -> None:
    for _ in range(KEPT_GENERATIONS + 2):
        added(tmp_path, MAIL)

    assert KEPT_GENERATIONS == len([*(tmp_path / "generations").iterdir()])


def test_a_partition_with_many_small_files_is_compacted(tmp_path: Path) -> None:
    for _ in range(MAX_SMALL_FILES + 1):
        added(tmp_path, MAIL)
    with Warehouse(tmp_path).open_draft() as draft:
        files = draft.files_to_compact("runs")
        draft.compact("runs", files, stage(draft, "merged", MAIL))
        now = draft.commit(WarehouseState())

    assert MAX_SMALL_FILES + 1 == len(files)
    assert {MAIL: 1} == counts(now)


def test_one_process_writes_at_a_time(tmp_path: Path) -> None:
    with Warehouse(tmp_path).open_draft(), pytest.raises(Refused, match="another process"):  # noqa: SIM117
        with Warehouse(tmp_path).open_draft():
            pass


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").touch()

    with pytest.raises(Refused, match="holds other files"), Warehouse(tmp_path).open_draft():
        pass


def test_a_missing_warehouse_names_the_command_that_creates_one(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="dibs spark history"):
        Warehouse.existing(tmp_path)


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (msgspec.json.encode({"format": FORMAT + 1, "offsets": 3}), StorageTooNew),
        (b'{"format": 1, "offs', StorageDamaged),
        (b"[]", StorageDamaged),
    ],
)
def test_a_state_that_cannot_be_trusted_is_refused(
    tmp_path: Path, raw: bytes, error: type[Exception]
) -> None:
    now = added(tmp_path, MAIL)
    (now.folder / "state.json").write_bytes(raw)

    with pytest.raises(error):
        Warehouse(tmp_path)


WRITER = """
import sys
from pathlib import Path
from tests.spark.test_history_warehouse import MAIL, NEXT, added
print("on", flush=True)
while True:
    added(Path(sys.argv[1]), MAIL, NEXT)
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_generation(tmp_path: Path) -> None:
    """Each write adds one file to two partitions and increases the horizon, so all three numbers are
    equal.
    """
    reached = 0
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE)
        assert writer.stdout
        writer.stdout.readline()
        while visible_increments(tmp_path) < reached + 3:
            assert writer.poll() is None
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        now = Warehouse.existing(tmp_path)
        reached = now.state.horizon

        assert {MAIL: reached, NEXT: reached} == counts(now)


def visible_increments(root: Path) -> int:
    """Return the number of increments that a reader sees while another process writes."""
    try:
        now = Warehouse(root)
        files = counts(now)
        is_kept = int(Warehouse(root).generation or 0) < int(now.generation or 0) + KEPT_GENERATIONS
    except (StorageDamaged, FileNotFoundError):
        # The warehouse changed more than once between the two reads, and the first generation is deleted.
        return 0
    assert not is_kept or files.get(MAIL, 0) == files.get(NEXT, 0)
    return now.state.horizon


@pytest.mark.parametrize("keeps_target", [True, False])
def test_a_copy_without_links_says_so(tmp_path: Path, *, keeps_target: bool) -> None:
    """A copy by `cp -rL` has a folder `current`, and one by an object store has no `current`."""
    added(tmp_path / "one", MAIL)
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    if not keeps_target:
        shutil.rmtree(tmp_path / "copy" / "current")

    with pytest.raises(StorageDamaged, match="copied without its links"):
        Warehouse.existing(tmp_path / "copy")
    with pytest.raises(StorageDamaged, match="copied without its links"):
        added(tmp_path / "copy", MAIL)


def test_each_attempt_has_a_staging_folder_of_its_own(tmp_path: Path) -> None:
    """Java may still write into the folder of an attempt whose Python process was killed."""
    folders = []
    for _ in range(2):
        with Warehouse(tmp_path).open_draft() as draft:
            folders.append(draft.staging("runs"))

    assert folders[0] != folders[1]
