"""The directory: names, modes, and the errors when it is opened."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from dibs.errors import StorageDamaged, StorageError, StorageTooNew, StorageUnavailable
from dibs.storage.file import FileStorage
from dibs.storage.file.directory import FORMAT
from tests.storage.file.folder import commit, commits, cut, fill, ids_in, names, opened, place, request


def modes(root: Path) -> set[tuple[bool, int]]:
    everything = [root, *root.rglob("*")]
    return {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in everything}


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
async def test_files_are_0600_and_folders_0700_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        await fill(tmp_path / "jobs", "a", "b")
        async with opened(tmp_path / "jobs") as storage:
            storage._write_checkpoint()
    finally:
        os.umask(old)

    assert {(True, 0o700), (False, 0o600)} == modes(tmp_path / "jobs")


@pytest.mark.parametrize("link", [False, True])
async def test_a_folder_of_other_files_is_refused_and_unchanged(tmp_path: Path, link: bool) -> None:  # noqa: FBT001
    (tmp_path / "precious.txt").write_text("mine")
    root = tmp_path
    if link:
        root = tmp_path.with_name(tmp_path.name + "-link")
        root.symlink_to(tmp_path)

    with pytest.raises(StorageUnavailable, match="a folder of its own") as caught:
        await fill(root, "a")

    assert "precious.txt" in str(caught.value)
    assert ["precious.txt"] == names(tmp_path)


async def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    await fill(tmp_path, "a")

    assert ["a"] == await ids_in(tmp_path)


async def test_missing_parents_are_created(tmp_path: Path) -> None:
    await fill(tmp_path / "deep" / "er" / "jobs", "a")

    assert ["a"] == await ids_in(tmp_path / "deep" / "er" / "jobs")


@pytest.mark.parametrize("below", ["", "jobs"])
async def test_a_path_that_is_a_file_is_refused(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("mine")

    with pytest.raises(StorageUnavailable, match=r"it is not a folder|Not a directory") as caught:
        await fill(tmp_path / "file" / below, "a")

    assert str(tmp_path / "file") in str(caught.value)
    assert "mine" == (tmp_path / "file").read_text()


async def test_a_directory_of_a_newer_format_is_refused_by_its_format_file(tmp_path: Path) -> None:
    await fill(tmp_path / "jobs", "a")
    (tmp_path / "jobs" / "format").write_text(json.dumps({"format": FORMAT + 1}))
    before = sorted(path for path in tmp_path.rglob("*"))

    with pytest.raises(StorageTooNew, match="upgrade dibs"):
        await fill(tmp_path / "jobs", "b")

    assert before == sorted(path for path in tmp_path.rglob("*"))


async def test_a_commit_of_a_newer_format_is_refused_by_its_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer process may start after this one has read the format file."""
    await fill(tmp_path / "jobs", "a")
    async with opened(tmp_path / "jobs") as old:
        monkeypatch.setattr("dibs.storage.file.frames.FORMAT", FORMAT + 1)
        await fill(tmp_path / "jobs", "b")
        monkeypatch.undo()

        with pytest.raises(StorageTooNew):
            await old.enqueue("q", [request("c")])
        with pytest.raises(StorageTooNew):
            await old.get("q", ["a"])

    assert [0, 1, 2] == commits(tmp_path / "jobs")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", "null", "\0" * 50]
    + [f'{{"format": {value}}}' for value in ('"1"', "null", "1.5", "0", "true")],
)  # fmt: skip
async def test_an_invalid_format_file_is_damage(tmp_path: Path, text: str) -> None:
    await fill(tmp_path / "jobs", "a")
    (tmp_path / "jobs" / "format").write_text(text)

    with pytest.raises(StorageDamaged) as caught:
        await ids_in(tmp_path / "jobs")

    assert "format" in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format": ' + "9" * 5000 + "}", " " * 5000])
async def test_a_format_file_that_is_hard_to_read_is_damage(tmp_path: Path, text: str) -> None:
    await test_an_invalid_format_file_is_damage(tmp_path, text)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "device"])
async def test_a_format_that_is_not_a_regular_file_is_damage(tmp_path: Path, kind: str) -> None:
    """The file is refused before a read: a FIFO without a writer would block, and /dev/zero has no end."""
    await fill(tmp_path / "jobs", "a")
    (tmp_path / "jobs" / "format").unlink()
    place(kind, tmp_path / "jobs" / "format")

    with pytest.raises(StorageDamaged, match="format"):
        await ids_in(tmp_path / "jobs")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o2775])
@pytest.mark.parametrize("below", ["", "commits", "tmp"])
async def test_a_folder_that_others_may_write_is_refused_unless_allowed(
    tmp_path: Path, mode: int, below: str
) -> None:
    await fill(tmp_path / "jobs", "a")
    (tmp_path / "jobs" / below).chmod(mode)

    with pytest.raises(StorageUnavailable, match="allow_others=1"):
        await fill(tmp_path / "jobs", "b")
    await fill(tmp_path / "jobs", "c", allow_others=True)

    assert ["a", "c"] == await ids_in(tmp_path / "jobs", allow_others=True)


async def test_an_empty_folder_that_others_may_write_stays_empty(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir(0o700)
    (tmp_path / "jobs").chmod(0o777)

    with pytest.raises(StorageUnavailable, match="chmod go-w"):
        await fill(tmp_path / "jobs", "a")
    assert [] == names(tmp_path / "jobs")


async def test_a_folder_of_another_user_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path / "jobs", "a")
    owner = (tmp_path / "jobs").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    with pytest.raises(StorageUnavailable, match=f"belongs to user {owner}"):
        await fill(tmp_path / "jobs", "b")
    await fill(tmp_path / "jobs", "c", allow_others=True)

    assert ["a", "c"] == await ids_in(tmp_path / "jobs", allow_others=True)


async def test_a_symlink_among_the_commits_is_not_followed(tmp_path: Path) -> None:
    await fill(tmp_path / "other", "stolen")
    await fill(tmp_path / "jobs", "a")
    commit(tmp_path / "jobs", 2).symlink_to(commit(tmp_path / "other", 1))

    with pytest.raises(StorageDamaged, match="symbolic link"):
        await fill(tmp_path / "jobs", "b")

    assert ["stolen"] == await ids_in(tmp_path / "other")


@pytest.mark.parametrize("name", ["checkpoint", "lock", "format"])
async def test_a_symlink_elsewhere_is_not_written_through(tmp_path: Path, name: str) -> None:
    await fill(tmp_path / "jobs", "a")
    target = tmp_path / "precious"
    target.write_bytes(b"mine")
    place = tmp_path / "jobs" / name
    place.unlink(missing_ok=True)
    place.symlink_to(target)

    with pytest.raises(StorageError):
        await fill(tmp_path / "jobs", "b")

    assert b"mine" == target.read_bytes()


STRANGE = ["README-not-hex!!", "0x00000000000001", "-000000000000001", "000000000000001_", ".swp", "9" * 17]


@pytest.mark.parametrize("name", STRANGE)
async def test_a_file_of_another_name_among_the_commits_is_skipped(tmp_path: Path, name: str) -> None:
    """Beside such a file, commits, checkpoints and the handling of a torn commit work."""
    root = tmp_path / "jobs"
    await fill(root, "a", "b")
    (root / "commits" / name).write_bytes(b"?")
    async with opened(root) as storage:
        storage._write_checkpoint()
    await fill(root, "c")
    cut(commit(root, 3), 40)

    assert ["a", "b"] == await ids_in(root)
    assert {name, commit(root, 2).name, commit(root, 3).name} == set(names(root / "commits"))


HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "a\nb",
    "con",
    "CON.",
    "é",
    "e\u0301",
    "A",
    "a",
    " ",
    ".",
    "x" * 512,
    "\x1b[31m",
]


async def test_ids_and_queues_never_become_paths(tmp_path: Path) -> None:
    """Names that differ in a byte, in case or in Unicode form are different, and no file has such a name."""
    root = tmp_path / "jobs"
    async with opened(root) as storage:
        for name in HOSTILE:
            await storage.enqueue(name[:500], [request(id) for id in HOSTILE])
        storage._write_checkpoint()
    async with opened(root) as storage:
        known = [info.name for info in await storage.queues()]
        for name in HOSTILE:
            page = await storage.list(name[:500], "waiting")
            assert sorted(HOSTILE) == [id for id, _ in page.items]

    assert sorted(name[:500] for name in HOSTILE) == known
    assert ["jobs"] == names(tmp_path)
    assert ["checkpoint", "commits", "format", "lock", "reserve", "tmp"] == names(root)


async def test_two_storages_on_one_directory_in_one_process_see_each_other(tmp_path: Path) -> None:
    async with opened(tmp_path / "jobs") as one, FileStorage(str(tmp_path / "jobs"), clock="manual") as two:
        await one.enqueue("q", [request("a")], now=10)
        await two.enqueue("q", [request("b")], now=10)

        assert 2 == (await one.counts(["q"]))["q"].waiting
        assert 2 == (await two.counts(["q"]))["q"].waiting


async def test_two_processes_may_create_the_folders_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process creates each folder right after this one has found it missing."""
    is_dir = Path.is_dir

    def is_dir_before_the_other(path: Path) -> bool:
        found = is_dir(path)
        if not found and path.parent == tmp_path / "jobs":
            path.mkdir(0o700)
        return found

    monkeypatch.setattr(Path, "is_dir", is_dir_before_the_other)
    await fill(tmp_path / "jobs", "a")

    assert ["a"] == await ids_in(tmp_path / "jobs")
