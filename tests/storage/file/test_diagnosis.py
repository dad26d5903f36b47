"""The examination of the folder of a file storage, with each fault and without."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dibs.model.findings import Finding
from dibs.storage.file import diagnosis, open_url
from dibs.storage.file.directory import Directory

IN_MEMORY = Path("/dev/shm")


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    async with open_url(f"file:{tmp_path}/jobs"):
        pass
    return tmp_path / "jobs"


@pytest.fixture
def in_memory() -> Iterator[Path]:
    if diagnosis.file_system_of(IN_MEMORY) != "tmpfs":
        pytest.skip(f"{IN_MEMORY} is no file system in memory here")
    folder = IN_MEMORY / f"dibs-{secrets.token_hex(4)}"
    yield folder
    shutil.rmtree(folder)


async def diagnose(folder: Path, **options: Any) -> list[Finding]:
    return await open_url(f"file:{folder}", **options).diagnose()


async def test_a_healthy_folder_has_no_findings(folder: Path) -> None:
    if diagnosis.file_system_of(folder) in diagnosis.IN_MEMORY:
        pytest.skip("the temporary folders of this machine are in memory")

    assert [] == await diagnose(folder, fsync=True)
    assert [] == [path.name for path in (folder / "tmp").iterdir()]


async def test_commits_without_fsync_are_a_note(folder: Path) -> None:
    (found,) = await diagnose(folder)

    assert ("file-no-fsync", "note") == (found.code, found.severity)


async def test_a_folder_in_memory_is_found(in_memory: Path) -> None:
    async with open_url(f"file:{in_memory}"):
        pass

    assert ["file-in-memory"] == [found.code for found in await diagnose(in_memory, fsync=True)]


async def test_a_folder_of_another_machine_is_found(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    escaped = str(folder).replace(" ", r"\040")
    mounts.write_text(
        f"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n36 22 0:42 / {escaped} rw shared:1 - nfs4 nas:/jobs rw\n"
    )
    monkeypatch.setattr(diagnosis, "MOUNTS", mounts)

    assert ["file-on-network"] == [found.code for found in await diagnose(folder, fsync=True)]
    assert "ext4" == diagnosis.file_system_of(tmp_path)


async def test_little_free_space_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "LEAST_BYTES", 1 << 60)

    assert ["file-space"] == [found.code for found in await diagnose(folder, fsync=True)]


def test_locks_that_do_not_exclude_each_other_are_found(folder: Path) -> None:
    found = diagnosis.diagnose(Directory(str(folder)), fsync=True, lock=lambda _file, blocking: not blocking)

    assert [("file-locks", "error")] == [(each.code, each.severity) for each in found]


async def test_a_folder_of_a_newer_dibs_is_found(folder: Path) -> None:
    (folder / "format").write_text('{"format": 2}')
    (found,) = await diagnose(folder, fsync=True)

    assert ("layout-newer", True) == (found.code, found.blocks)
