"""A folder is removed, replaced or restored under an open storage, which goes on in the new folder."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import pytest

from dibs import Dibs
from dibs.errors import StorageDamaged, StorageUnavailable
from dibs.storage.file import FileStorage, open_url
from dibs.storage.file.replay import Replay
from dibs.storage.indexed.index import Step
from tests.storage.file.child_process import PROJECT
from tests.storage.file.doubling_app import app, double
from tests.storage.file.folder import commit, commits, fill, ids_in, opened, request


def remove_tree(folder: Path) -> None:
    """Remove a folder into which a live worker may write a file meanwhile."""
    while folder.exists():
        with suppress(OSError):
            shutil.rmtree(folder)


def remove(root: Path, _: Path) -> None:
    remove_tree(root)


def empty(root: Path, _: Path) -> None:
    for path in root.iterdir():
        remove_tree(path) if path.is_dir() else path.unlink()


def replace_by_copy(root: Path, backup: Path) -> None:
    root.rename(root.with_name("old"))
    shutil.copytree(backup, root)


def switch_link(root: Path, backup: Path) -> None:
    """Switch the parent, as a release does: current -> r1 becomes current -> r2."""
    shutil.copytree(backup, root.parent.with_name("r2") / "jobs")
    link = root.parent.with_name("next")
    link.symlink_to("r2")
    link.rename(root.parent)


def restore_in_place(root: Path, backup: Path) -> None:
    empty(root, backup)
    shutil.copytree(backup, root, dirs_exist_ok=True)


def restore_only_jobs(root: Path, backup: Path) -> None:
    """Keep the lock file, as rsync does: it is equal in the backup."""
    for path in [*(root / "commits").iterdir(), root / "checkpoint"]:
        path.unlink(missing_ok=True)
    shutil.copytree(backup / "commits", root / "commits", dirs_exist_ok=True)


#: The ways, and the ids in the folder afterwards.
WAYS: dict[str, tuple[Callable[[Path, Path], None], list[str]]] = {
    "removed": (remove, []),
    "emptied": (empty, []),
    "replaced by a copy": (replace_by_copy, ["a", "b"]),
    "switched link": (switch_link, ["a", "b"]),
    "restored in place": (restore_in_place, ["a", "b"]),
    "restored without the lock": (restore_only_jobs, ["a", "b"]),
}
EVERY_WAY = pytest.mark.parametrize(("change", "left"), WAYS.values(), ids=WAYS)


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """Return a path through a link to a folder with the jobs a and b. `backup` is a copy of it."""
    (tmp_path / "r1").mkdir()
    (tmp_path / "current").symlink_to("r1")
    root = tmp_path / "current" / "jobs"
    await fill(root, "a", "b")
    shutil.copytree(root, tmp_path / "backup")
    return root


def backup_of(root: Path) -> Path:
    return root.parent.with_name("backup")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "dibs.storage.file"]


@EVERY_WAY
@pytest.mark.parametrize("compacted", [False, True])
async def test_a_storage_writes_into_the_folder_of_its_path_and_damages_none(
    root: Path,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Path, Path], None],
    left: list[str],
    compacted: bool,  # noqa: FBT001
) -> None:
    async with opened(root) as storage:
        for id in ("c", "d", "e"):
            await storage.enqueue("q", [request(id)], now=2000)
        if compacted:
            await storage.compact()
        change(root, backup_of(root))
        # Another process works there first, so that the folder has a commit with the next number.
        for number in range(4):
            await fill(root, f"other-{number}", now=3000)
        others = [f"other-{number}" for number in range(4)]
        seen = sorted(id for id, _ in (await storage.list("q", "waiting")).items)
        await storage.enqueue("q", [request("late")], now=3000)

        assert sorted([*left, *others]) == seen
        assert sorted([*left, *others, "late"]) == await ids_in(root)
        assert 1 == len(warnings(caplog)), warnings(caplog)
    old = root.with_name("old")
    if old.exists():
        assert ["a", "b", "c", "d", "e"] == await ids_in(old)


@EVERY_WAY
async def test_a_process_draws_no_number_twice(
    root: Path, change: Callable[[Path, Path], None], left: list[str]
) -> None:
    async with opened(root) as storage:
        [before] = await storage.enqueue("q", [request("c")], now=9000)
        change(root, backup_of(root))
        [after] = await storage.enqueue("q", [request("c")], now=2000)

        assert before.revision < after.revision
        assert [*left, "c"] == await ids_in(root)


@EVERY_WAY
async def test_a_wait_ends_and_a_later_one_sees_the_new_folder(
    root: Path, change: Callable[[Path, Path], None], left: list[str]
) -> None:
    async with FileStorage(str(root), poll=0.05) as storage, asyncio.timeout(45):
        since = (await storage.wait(["q", "new"], timeout=0)).since
        waiting = asyncio.create_task(storage.wait(["q", "new"], since=since))
        await storage.counts(["q"])
        await storage.enqueue("elsewhere", [request("x")])
        change(root, backup_of(root))
        since = (await waiting).since
        waiting = asyncio.create_task(storage.wait(["new"], since=since))
        async with FileStorage(str(root)) as other:
            await other.enqueue("new", [request("y")])

        assert (await waiting).woken
        assert left == sorted(id for id, _ in (await storage.list("q", "waiting")).items)


async def test_a_folder_of_another_user_is_refused_also_under_an_open_storage(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may write a parent folder could otherwise put jobs of its own there, which would be run."""
    async with opened(root) as storage:
        replace_by_copy(root, backup_of(root))
        root.chmod(0o777)
        for _ in range(2):
            with pytest.raises(StorageUnavailable, match="may be written by other users"):
                await storage.enqueue("q", [request("c")])
            with pytest.raises(StorageUnavailable, match="may be written by other users"):
                await storage.get("q", ["a"])
        root.chmod(0o700)
        await storage.enqueue("q", [request("c")], now=3000)

    assert ["a", "b", "c"] == await ids_in(root)


@pytest.mark.parametrize("is_open", [False, True], ids=["open", "reopen"])
async def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, is_open: bool
) -> None:
    """Its files are removed while a process replays them, which must not look like damage."""
    await fill(root, "a", "b", "c")
    copies = [shutil.copytree(root, root.with_name(f"copy-{number}")) for number in range(2)]
    first = root.with_name("first")
    root.rename(first)
    root.symlink_to(first)

    def replace(folder: Path) -> None:
        before = root.resolve()
        link = root.with_name("next")
        link.symlink_to(folder)
        link.rename(root)
        shutil.rmtree(before)

    def replace_and_read(self: Replay) -> Iterator[Step]:
        for step in read(self):
            yield step
            if copies:
                replace(copies.pop())

    read = Replay.replay_all_commits
    async with AsyncExitStack() as stack:
        storage = opened(root)
        if is_open:
            await stack.enter_async_context(storage)
            replace(copies.pop())
        monkeypatch.setattr(Replay, "replay_all_commits", replace_and_read)
        if not is_open:
            await stack.enter_async_context(storage)
        await storage.enqueue("q", [request("d")], now=2000)

    assert not copies
    assert ["a", "b", "c", "d"] == await ids_in(root)


async def test_a_partly_removed_folder_is_refused_and_left_alone(root: Path) -> None:
    """As in the middle of `rm -r`. A file that is created meanwhile would keep the folder."""
    async with opened(root) as storage:
        await storage.enqueue("q", [request("c")], now=2000)
        (root / "format").unlink()
        (root / "lock").unlink()
        before = sorted(root.rglob("*"))
        for _ in range(2):
            with pytest.raises(StorageDamaged, match="format is missing"):
                await storage.enqueue("q", [request("d")])

    assert before == sorted(root.rglob("*"))


async def test_a_commit_that_is_removed_under_an_open_storage_is_damage(root: Path) -> None:
    async with opened(root) as storage:
        await storage.compact()
        await storage.enqueue("q", [request("c")], now=2000)
        for number in commits(root):
            commit(root, number).unlink()
        for _ in range(2):
            with pytest.raises(StorageDamaged, match="another program has removed commits"):
                await storage.enqueue("q", [request("d")], now=2000)
            with pytest.raises(StorageDamaged, match="another program has removed commits"):
                await storage.get("q", ["a"])


async def test_a_copy_has_an_identity_of_its_own_from_its_first_write_on(root: Path) -> None:
    async with opened(root) as storage, opened(root) as second:
        original = storage._directory.incarnation
        await storage.enqueue("q", [request("c")], now=2000)
        assert original == second._directory.incarnation != ""
    async with opened(backup_of(root)) as copy:
        await copy.enqueue("q", [request("c")], now=2000)
        assert copy._directory.incarnation != original
    async with opened(backup_of(root)) as again:
        assert copy._directory.incarnation == again._directory.incarnation
        await again.enqueue("q", [request("d")], now=2000)
        assert copy._directory.incarnation == again._directory.incarnation


@pytest.mark.parametrize("way", ["removed", "replaced by a copy", "restored in place"])
async def test_a_worker_goes_on_in_the_folder_that_replaced_its_own(root: Path, way: str) -> None:
    url = f"file:{root}"
    worker = subprocess.Popen(  # noqa: ASYNC220 - starts at once
        [sys.executable, "-m", "dibs", "worker", "tests.storage.file.doubling_app:app", "--url", url],
        cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(90):
            assert 2 == await run_job(url, 1)
            WAYS[way][0](root, backup_of(root))
            assert 4 == await run_job(url, 2)
    finally:
        worker.terminate()
        _, errors = worker.communicate(timeout=60)
    assert "has removed or replaced" in errors
    assert 0 == worker.returncode


async def run_job(url: str, number: int) -> int:
    async with app.using(url):
        return await (await double.enqueue(number)).result(wait=60)


@pytest.mark.parametrize("url", ["file:jobs", "file:./jobs"])
async def test_a_relative_path_means_one_place_for_the_life_of_an_app(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    """A handler may change the working directory. The app is closed and used again after that, too."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    app, storage = Dibs(url), open_url(url)
    async with app:
        await app.queue("q").enqueue(1, id="a")
        monkeypatch.chdir(tmp_path / "elsewhere")
        await app.queue("q").enqueue(1, id="b")
    async with app, storage:
        await app.queue("q").enqueue(1, id="c")
        await storage.enqueue("q", [request("d")])

    assert ["a", "b", "c", "d"] == await ids_in(tmp_path / "jobs")
    assert [] == [*(tmp_path / "elsewhere").iterdir()]
