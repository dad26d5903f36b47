"""The LMDB environment of a folder, and steps: transactions with the time and the numbers of the storage."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, cast

import lmdb

from dibs.errors import (
    OutcomeUnknown,
    StorageBusy,
    StorageDamaged,
    StorageError,
    StorageFull,
    StorageTooNew,
    StorageUnavailable,
)
from dibs.storage.clock import JUMP, report_lead, storage_time
from dibs_lmdb import keys
from dibs_lmdb.records import FORMAT, Meta, pack, unpack

MOST_READERS = 1024

#: By process, folder and inode of the file.
_open: dict[tuple[int, str, int], Environment] = {}
_opening = Lock()


class Environment:
    """The open environment of a folder. LMDB lets a process open a folder only once, so storages share it."""

    def __init__(
        self, key: tuple[int, str, int], env: lmdb.Environment, folder: Path, options: dict[str, Any]
    ) -> None:
        self.key, self.env, self.folder, self.users = key, env, folder, 1
        self.inode = key[2]
        self._options = options
        #: True after an error of a commit: LMDB then refuses every transaction of this environment.
        self._is_broken = False

    @staticmethod
    def open(folder: Path, *, sync: bool, map_size: int) -> Environment:
        with _opening:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                # The process id, because a forked child must not use the environment of its parent.
                name = str(folder.resolve())
                found = _open.get((os.getpid(), name, _inode(folder)))
                if found is not None:
                    found.users += 1
                    return found
                options: dict[str, Any] = {"map_size": map_size, "sync": sync, "max_readers": MOST_READERS}
                env = lmdb.open(str(folder), **options)
                env.reader_check()  # Free the places of readers that were killed.
                inode = _inode(folder)
                with env.begin() as txn:
                    is_new = txn.get(keys.META) is None
                if is_new:
                    with env.begin(write=True) as txn:
                        txn.put(keys.META, pack(Meta(inode=inode)), overwrite=False)
            except (lmdb.Error, OSError) as error:
                raise StorageUnavailable(f"cannot open the LMDB folder {folder}: {error}") from error
            key = (os.getpid(), name, inode)
            _open[key] = Environment(key, env, folder, options)
            return _open[key]

    @property
    def is_replaced(self) -> bool:
        """True if the folder has another file than the one that is open."""
        try:
            return _inode(self.folder) != self.inode
        except OSError as error:
            raise StorageUnavailable(f"cannot read the LMDB folder {self.folder}: {error}") from error

    def close(self) -> None:
        with _opening:
            self.users -= 1
            if not self.users:
                del _open[self.key]
                self.env.close()

    @property
    def change(self) -> int:
        """A number that grows with each commit of any process. It is read from shared memory."""
        with _opening:
            return int(self.env.info()["last_txnid"])

    def _mend(self) -> None:
        """Open the environment again if an error has broken it. What was committed is in the file."""
        with _opening:
            if not self._is_broken:
                return
            self.env.close()
            try:
                self.env = lmdb.open(str(self.folder), **self._options)
            except (lmdb.Error, OSError) as error:
                raise StorageUnavailable(f"cannot open the LMDB folder {self.folder}: {error}") from error
            self._is_broken = False

    @contextmanager
    def step(self, name: str, manual: int | None, *, write: bool) -> Iterator[EnvironmentStep]:
        """Open a transaction. `manual` is the time of a manual clock; None takes the system clock."""
        self._mend()
        try:
            txn = self.env.begin(write=write)
        except lmdb.Error as error:
            self._is_broken = isinstance(error, lmdb.PanicError)
            raise _translate(error) from error
        try:
            step = EnvironmentStep(txn, manual, self.inode)
            yield step
            if write:
                step.put(keys.META, pack(step.meta))
        except lmdb.Error as error:
            txn.abort()
            raise _translate(error) from error
        except BaseException:
            txn.abort()
            raise
        if not write:
            txn.abort()
            return
        try:
            txn.commit()
        except lmdb.MapFullError as error:
            raise _translate(error) from error
        except lmdb.Error as error:
            self._is_broken = True
            raise OutcomeUnknown(f"LMDB reported an error at the commit: {error}") from error
        if step.new_lead:
            report_lead(name, step.new_lead)


class EnvironmentStep:
    """One transaction."""

    def __init__(self, txn: lmdb.Transaction, manual: int | None, inode: int) -> None:
        self.txn = txn
        packed = self.get(keys.META)
        self.meta = Meta() if packed is None else unpack(Meta, packed, "the clock of the storage")
        if self.meta.format > FORMAT:
            raise StorageTooNew(
                f"the storage has the format {self.meta.format}; this version reads up to {FORMAT}"
            )
        if self.meta.inode != inode:
            # The original of this copy may have drawn more numbers (contract 1, Numbers after a loss).
            self.meta.ahead += JUMP
        self.meta.inode = inode
        lead = self.meta.lead
        if manual is None:
            self.now, self.meta.lead = storage_time(time.time_ns() // 1_000_000, self.meta.highest, lead)
        else:
            self.now = max(manual, self.meta.highest)
        self.new_lead = self.meta.lead if self.meta.lead != lead else 0
        self.meta.highest = max(self.meta.highest, self.now)

    def draw(self) -> int:
        """Draw a number that is above all earlier ones and at least now in µs; in a copy an hour ahead."""
        self.meta.drawn = max(self.meta.drawn + 1, self.now * 1000 + self.meta.ahead)
        return self.meta.drawn

    def get(self, key: bytes) -> bytes | None:
        return cast("bytes | None", self.txn.get(key))

    def put(self, key: bytes, value: bytes = b"") -> None:
        self.txn.put(key, value)

    def delete(self, key: bytes) -> None:
        self.txn.delete(key)

    def first(self, prefix: bytes, start: bytes = b"") -> tuple[bytes, bytes] | None:
        """Return the rest of the first key with a prefix, from `start` on, and its value."""
        with self.txn.cursor() as cursor:
            if cursor.set_range(prefix + start):
                key, value = cast("tuple[bytes, bytes]", cursor.item())
                if key.startswith(prefix):
                    return key[len(prefix) :], value
        return None

    def scan(self, prefix: bytes, start: bytes = b"") -> Iterator[tuple[bytes, bytes]]:
        """Yield the rest of each key with a prefix, from `start` on. Do not write during the scan."""
        with self.txn.cursor() as cursor:
            if not cursor.set_range(prefix + start):
                return
            for key, value in cast("Iterator[tuple[bytes, bytes]]", cursor):
                if not key.startswith(prefix):
                    return
                yield key[len(prefix) :], value


def _inode(folder: Path) -> int:
    """Return the inode of the file of a folder; 0 if there is none."""
    try:
        return (folder / "data.mdb").stat().st_ino
    except FileNotFoundError:
        return 0


def _translate(error: lmdb.Error) -> StorageError:
    """Return the error for a transaction that LMDB could not do, and that changed nothing."""
    if isinstance(error, lmdb.MapFullError):
        return StorageFull("the LMDB folder is full; open it with a larger map_size")
    if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError | lmdb.PanicError | lmdb.InvalidError):
        return StorageDamaged(f"the LMDB folder is damaged: {error}")
    if isinstance(error, lmdb.ReadersFullError):
        return StorageBusy("the LMDB folder has too many readers")
    return StorageError(f"LMDB reported an error: {error}")
