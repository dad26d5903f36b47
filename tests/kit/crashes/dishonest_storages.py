"""Storages that claim more durability than they have, and devices whose power a test can cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dibs.storage.capabilities import Capabilities
from dibs.storage.file import FileStorage
from dibs.storage.file.folder import Identity
from dibs.storage.indexed.index import Index, Step
from dibs.storage.protocol import Clock

#: As the file storage, but for one process.
UNSHARED = Capabilities(durable=True, cross_queue=True, push_wakeups=True, manual_clock=True)


class UnsharedStorage(FileStorage):
    """A file storage that only one process may use."""

    capabilities = UNSHARED


class LateStorage(UnsharedStorage):
    """A planted bug: it writes every fourth commit only with the next one, or when it is closed."""

    _late: Callable[[], Identity] | None = None

    def _catch_up(self, *, locked: bool = False) -> None:
        if self._late is None:
            super()._catch_up(locked=locked)

    def _write_commit(self, index: Index, step: Step, number: int, **how: Any) -> None:
        self._write_late()
        real = self._directory.write

        def later(name: str, chunks: Iterable[bytes], **options: Any) -> Identity:
            chunks = [*chunks]
            self._late = partial(real, name, chunks, **options)
            return (0, 0, sum(map(len, chunks)))

        if self._replay.number % 4 == 3:
            vars(self._directory)["write"] = later
        try:
            super()._write_commit(index, step, number, **how)
        finally:
            vars(self._directory).pop("write", None)

    def _write_late(self) -> None:
        late, self._late = self._late, None
        if late is not None:
            self._replay._last = late()

    async def close(self) -> None:
        self._write_late()
        await super().close()


class CachedStorage(UnsharedStorage):
    """A file storage on a device with a cache: `cache` has all written files, `disk` the synced ones.

    With `forgetful`, a planted bug, it does not sync every fourth commit.
    """

    def __init__(self, folder: str, *, clock: Clock, forgetful: bool) -> None:
        super().__init__(f"{folder}/cache", clock=clock)
        self.durability = "power loss: every commit is synced"
        self._folder, self._forgetful = Path(folder), forgetful

    def _load_directory(self) -> None:
        super()._load_directory()
        sync(self._folder)

    def _write_commit(self, index: Index, step: Step, number: int, **how: Any) -> None:
        super()._write_commit(index, step, number, **how)
        if not self._forgetful or self._replay.number % 4:
            sync(self._folder)


def sync(folder: Path) -> None:
    """Copy new files of the cache to the disk, each by a rename, and remove the files that are gone."""
    cache, disk = folder / "cache", folder / "disk"
    written = {path.relative_to(cache): path for path in cache.rglob("*") if path.is_file()}
    for name, path in written.items():
        kept = disk / name
        if not kept.exists() or kept.stat().st_mtime_ns != path.stat().st_mtime_ns:
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, folder / "copy")
            (folder / "copy").rename(kept)
    for kept in [path for path in disk.rglob("*") if path.is_file()]:
        if kept.relative_to(disk) not in written:
            kept.unlink()


@contextmanager
def cached_device(folder: str) -> Iterator[Callable[[], None]]:
    """Yield a function that replaces the content of the cache by that of the disk, as a power cut does."""
    root = Path(folder)
    root.mkdir(parents=True, exist_ok=True)

    def cut() -> None:
        shutil.rmtree(root / "cache", ignore_errors=True)
        (root / "disk/commits").mkdir(parents=True, exist_ok=True)
        shutil.copytree(root / "disk", root / "cache")

    yield cut


class UnsyncedStorage(FileStorage):
    """A planted bug: it claims to survive a power loss and syncs nothing."""

    def __init__(self, folder: str, *, clock: Clock) -> None:
        super().__init__(folder, clock=clock)
        self.durability = "Power loss: every commit is synced"


class Target:
    """A function `open_storage` for a class of storages below a folder, with the hooks of its kind."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder = kind, str(folder)
        if kind == "unsynced, with its folder":
            self.data_folder = self.path
        if kind.startswith("cached"):
            self.power_loss = self.device

    def path(self, location: str) -> str:
        return f"{self.folder}/{location}"

    def device(self, location: str) -> Any:
        return cached_device(self.path(location))

    def __call__(self, location: str, clock: Clock) -> FileStorage:
        path = self.path(location)
        match self.kind:
            case "late":
                return LateStorage(path, clock=clock)
            case "cached" | "cached, forgetful":
                return CachedStorage(path, clock=clock, forgetful="," in self.kind)
            case "unsynced" | "unsynced, with its folder":
                return UnsyncedStorage(path, clock=clock)
            case _:
                return UnsharedStorage(path, clock=clock)
