"""A draft of the next generation of a warehouse, and the removal of files that no generation needs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

from msgspec.structs import asdict

from dibs.client.options.arguments import new_id
from dibs.errors import Refused
from dibs.spark.history.tables import TIME_COLUMNS, latest_time, row_count
from dibs.spark.history.warehouse.manifest import (
    DATA,
    FORMAT,
    MANIFESTS,
    TABLES,
    DataFile,
    Manifest,
    TablePartition,
    WarehouseState,
    decode_state,
    encode_manifest,
    generation_name,
    manifest_number,
    manifest_path,
    partition_folder,
    partition_of,
)
from dibs.spark.history.warehouse.store import Store
from dibs.version import VERSION

#: Seconds for which a replaced generation is kept, so that its readers can finish.
KEEP_SECONDS: Final = 3600
#: Seconds after which a file that no generation names is an orphan: an attempt left it that was killed.
ORPHAN_SECONDS: Final = 24 * 3600
#: Generations between two searches for orphans. A search lists all files.
SEARCH_EVERY: Final = 100


def remove_old(store: Store, current: Manifest) -> None:
    """Delete the generations that were replaced long ago, with the files that only they name.

    A file that a generation no longer names never comes back. So the files to delete are those of an old
    manifest that the next manifest does not name. The manifest is deleted first: a reader never finds a
    manifest without its files, and a kill in between leaves orphans.
    """
    now = time.time()
    listed = store.list_files(MANIFESTS)
    numbers = sorted(number for path in listed if (number := manifest_number(path)) is not None)
    for old, following in pairwise(numbers):
        # A generation is replaced when the next one is written.
        if now - listed[manifest_path(following)].changed_at < KEEP_SECONDS:
            break
        before, after = _read(store, old), _read(store, following)
        store.delete([manifest_path(old)])
        store.delete(sorted(before.paths() - after.paths()))
    if current.generation % SEARCH_EVERY == 0:
        remove_orphans(store, now)


def remove_orphans(store: Store, now: float) -> None:
    """Delete the old files that no kept generation names.

    A file of an attempt that still runs is younger. An attempt that sleeps for a day cannot commit any
    more, because this function runs only after the commit of another one.
    """
    named: set[str] = set()
    for path in store.list_files(MANIFESTS):
        if (number := manifest_number(path)) is not None:
            named |= _read(store, number).paths()
    files = store.list_files(DATA)
    orphans = [path for path, file in files.items() if now - file.changed_at > ORPHAN_SECONDS]
    store.delete(sorted({*orphans} - named))


def _read(store: Store, number: int) -> Manifest:
    path = manifest_path(number)
    return decode_state(store.read(path), store.full_path(path), Manifest)


#: A partition with more than MAX_SMALL_FILES files below this size is compacted.
SMALL_FILE_BYTES: Final = 32 * 1024 * 1024
MAX_SMALL_FILES: Final = 8
#: A file is merged only with smaller files that have at least a quarter of its size together.
MERGE_RATIO: Final = 4


class WarehouseBusy(Refused):
    """Another process writes to the warehouse. Nothing was changed; a later increment may succeed."""


class StagedFile:
    """A new file of a table, in the local folder of the attempt."""

    def __init__(self, table: str, path: Path) -> None:
        self.path = path
        self.partition: TablePartition = partition_of(path)
        self.rows: int = row_count([path])
        self.bytes: int = path.stat().st_size
        self.latest: int = latest_time([path], *TIME_COLUMNS.get(table, ()))


class WarehouseDraft:
    """The next generation while it is built: the files that it will hold. Readers see it after `commit`."""

    def __init__(self, store: Store, before: Manifest, folder: Path) -> None:
        self.store = store
        self.before = before
        self.folder = folder
        self.attempt: str = new_id()
        self._kept: dict[str, list[DataFile]] = {name: [*before.tables.get(name, ())] for name in TABLES}
        self._new: dict[str, list[StagedFile]] = {name: [] for name in TABLES}
        #: Local file -> path of the kept file of which it is the copy.
        self._copies: dict[Path, str] = {}

    def staging(self, name: str) -> Path:
        """Return the path of a new folder to write a table, or a part of one, to."""
        return self.folder / name

    def staged(self, name: str) -> list[Path]:
        """Return the files written under a name; an empty list if there are none."""
        return sorted(self.staging(name).rglob("*.parquet"))

    def known(self, table: str) -> list[DataFile]:
        """Return the files of a table in the generation before."""
        return [*self.before.tables.get(table, ())]

    def local(self, files: Iterable[DataFile]) -> list[Path]:
        """Return local copies of files of the generation before."""
        return [self.store.local_copy(file.path) for file in files]

    def add(self, table: str, name: str) -> None:
        """Add the files staged under a name to a table."""
        self._new[table] += [StagedFile(table, path) for path in self.staged(name)]

    def replace(self, table: str, touched: Iterable[TablePartition], name: str) -> None:
        """Replace all files of the partitions `touched` with the files staged under a name."""
        parts = set(touched)
        self._kept[table] = [file for file in self._kept[table] if file.partition not in parts]
        self.add(table, name)

    def files_to_compact(self, table: str) -> list[Path]:
        """Return files to merge, of every partition that has too many small files, as local files."""
        small: dict[TablePartition, list[DataFile | StagedFile]] = {}
        files: list[DataFile | StagedFile] = [*self._kept[table], *self._new[table]]
        for file in files:
            if file.bytes < SMALL_FILE_BYTES:
                small.setdefault(file.partition, []).append(file)
        many = (its for its in small.values() if len(its) > MAX_SMALL_FILES)
        return [self._local_file(file) for its in many for file in _files_to_merge(its)]

    def _local_file(self, file: DataFile | StagedFile) -> Path:
        if isinstance(file, StagedFile):
            return file.path
        copy = self.store.local_copy(file.path)
        self._copies[copy] = file.path
        return copy

    def compact(self, table: str, files: Iterable[Path], name: str) -> None:
        """Replace files that `files_to_compact` has returned with the files staged under a name."""
        replaced = {*files}
        paths = {self._copies[path] for path in replaced & self._copies.keys()}
        self._new[table] = [file for file in self._new[table] if file.path not in replaced]
        self._kept[table] = [file for file in self._kept[table] if file.path not in paths]
        self.add(table, name)

    def commit(self, state: WarehouseState) -> Manifest:
        """Make the draft the current generation, by creating its manifest.

        Raise WarehouseBusy if another process has committed a generation since this draft was opened.
        Then nothing is changed.
        """
        number = self.before.generation + 1
        tables = {table: (*self._kept[table], *self._put(table, number)) for table in TABLES}
        fields = {**asdict(state), "format": FORMAT, "version": VERSION, "tables": tables}
        own = {"generation": number, "attempt": self.attempt, "written_at": round(time.time() * 1000)}
        manifest = Manifest(**{**fields, **own})
        self._create(manifest)
        remove_old(self.store, manifest)
        return manifest

    def _put(self, table: str, number: int) -> list[DataFile]:
        put = []
        for index, staged in enumerate(self._new[table]):
            folder = f"{DATA}/{table}/{partition_folder(staged.partition)}"
            path = f"{folder}/{generation_name(number)}-{self.attempt}-{index}.parquet"
            self.store.put(staged.path, path)
            queue, date = staged.partition
            put.append(
                DataFile(
                    path=path,
                    queue=queue,
                    date=date,
                    rows=staged.rows,
                    bytes=staged.bytes,
                    latest=staged.latest,
                )
            )
        return put

    def _create(self, manifest: Manifest) -> None:
        """Create the manifest. This one operation commits the generation."""
        path = manifest_path(manifest.generation)
        try:
            self.store.create(path, encode_manifest(manifest))
        except FileExistsError:
            # The store may have repeated our own request, after its first reply was lost.
            found = decode_state(self.store.read(path), self.store.full_path(path), Manifest)
            if found.attempt != self.attempt:
                self._give_up(manifest)
        newest = max(filter(None, map(manifest_number, self.store.list_files("manifests"))))
        if newest > manifest.generation:
            # This process has slept for so long that the manifest it competed for is deleted already.
            self.store.delete([path])
            self._give_up(manifest)

    def _give_up(self, manifest: Manifest) -> None:
        self.store.delete(sorted(manifest.paths() - self.before.paths()))
        raise WarehouseBusy(
            f"another process has written generation {manifest.generation} of the warehouse "
            f"{self.store.location} at the same time; this increment changed nothing. Repeat it",
            field="warehouse",
        )


def _files_to_merge(
    files: Iterable[DataFile | StagedFile],
) -> list[DataFile | StagedFile]:
    """Return the smaller files of a partition, to be merged into one.

    Merging all files each time would write a large file again for a few new rows. With this rule the file
    of a row grows by a quarter or more with each merge, so a row is written again a logarithmic number of
    times. If no file qualifies, the list is empty.
    """
    ordered, smaller, end = sorted(files, key=lambda file: file.bytes), 0, 0
    for index, file in enumerate(ordered):
        if index and file.bytes <= MERGE_RATIO * smaller:
            end = index + 1
        smaller += file.bytes
    return ordered[:end]
