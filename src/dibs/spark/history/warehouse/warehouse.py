"""A warehouse, opened to read its current generation or to write the next one."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from dibs.client.options.arguments import new_id
from dibs.errors import Refused, StorageReadOnly
from dibs.spark.history.warehouse.draft import WarehouseBusy, WarehouseDraft
from dibs.spark.history.warehouse.manifest import (
    MANIFESTS,
    DataFile,
    Manifest,
    TablePartition,
    WarehouseState,
    decode_state,
    generation_name,
    manifest_number,
    manifest_path,
)
from dibs.spark.history.warehouse.store import LocalStore, Store, open_store


class Warehouse:
    """The tables of the generation that was current when the warehouse was opened."""

    def __init__(self, location: str | Path) -> None:
        self.store: Store = open_store(location)
        self._location = location
        self.manifest: Manifest = _current_manifest(self.store)

    @classmethod
    def existing(cls, location: str | Path) -> Warehouse:
        """Open a warehouse to read it. Raise Refused if there is none."""
        opened = cls(location)
        if not opened.manifest.generation:
            raise Refused(
                f"no warehouse in {location}; create one with dibs spark history --warehouse {location}",
                field="warehouse",
            )
        return opened

    @property
    def state(self) -> WarehouseState:
        """The state of the generation, in addition to its tables."""
        return self.manifest

    @property
    def generation(self) -> str:
        """The number of the generation as text that sorts; empty before the first increment."""
        return generation_name(self.manifest.generation)

    def files(self, table: str) -> dict[TablePartition, list[DataFile]]:
        """Return the files of a table by partition."""
        found: dict[TablePartition, list[DataFile]] = {}
        for file in self.manifest.tables.get(table, ()):
            found.setdefault(file.partition, []).append(file)
        return found

    @contextmanager
    def open_draft(self) -> Iterator[WarehouseDraft]:
        """Yield a draft of the next generation, based on the current one.

        In a local folder, a lock keeps other writers out from the beginning. In an object store, the
        writer that commits second gets the error. Raise WarehouseBusy while another process writes, and
        StorageReadOnly if the folder cannot be written.
        """
        with _writer_lock(self.store):
            now = Warehouse(self._location)
            if not now.manifest.generation and not isinstance(self.store, LocalStore):
                _check_creates(self.store)
            folder = self.store.work_folder()
            try:
                yield WarehouseDraft(self.store, now.manifest, folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)


def _current_manifest(store: Store) -> Manifest:
    """Return the manifest with the largest number, or an empty one for a new warehouse."""
    numbers = [manifest_number(path) for path in store.list_files(MANIFESTS)]
    newest = max((number for number in numbers if number is not None), default=0)
    if not newest:
        return Manifest()
    path = manifest_path(newest)
    return decode_state(store.read(path), store.full_path(path), Manifest)


@contextmanager
def _writer_lock(store: Store) -> Iterator[None]:
    if not isinstance(store, LocalStore):
        yield
        return
    _create_folder(store.root)
    lock = FileLock(store.root / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise WarehouseBusy(
            f"another process is writing to the warehouse {store.root}; wait for it or stop it",
            field="warehouse",
        ) from None
    with lock:
        # The folders of attempts that were killed.
        shutil.rmtree(store.root / "staging", ignore_errors=True)
        try:
            yield
        finally:
            shutil.rmtree(store.root / "staging", ignore_errors=True)


def _create_folder(root: Path) -> None:
    is_warehouse = any((root / name).exists() for name in (MANIFESTS, "lock", "staging"))
    if root.is_dir() and any(root.iterdir()) and not is_warehouse:
        raise Refused(f"{root} holds other files; choose an empty folder", field="warehouse")
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageReadOnly(f"cannot write to {root}: {error.strerror}") from error


def _check_creates(store: Store) -> None:
    """Raise Refused for a store that overwrites a file where it should refuse to create it.

    Some object stores ignore `If-None-Match`. There, a second writer would replace the manifest of the
    first.
    """
    probe = f"probe/{new_id()}"
    try:
        store.create(probe, b"1")
        try:
            store.create(probe, b"2")
        except FileExistsError:
            return
    finally:
        store.delete([probe])
    raise Refused(
        f"{store.location} does not support conditional writes (If-None-Match: *), which keep two "
        "writers apart; choose another store",
        field="warehouse",
    )
