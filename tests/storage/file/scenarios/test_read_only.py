"""A directory that may be read but not written: reads work, writes raise StorageReadOnly."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.storage.file.child_process import Child
from tests.storage.file.folder import fill, ids_in, names


def can_bind(folder: Path) -> bool:
    if shutil.which("unshare") is None or os.geteuid() != 0:
        return False
    tried = subprocess.run(
        ["unshare", "-m", "mount", "--bind", str(folder), str(folder)], capture_output=True, check=False
    )
    return tried.returncode == 0


@pytest.fixture
async def bound(tmp_path: Path) -> AsyncIterator[Child]:
    """A process that uses the directory through a read-only mount."""
    if not can_bind(tmp_path):
        pytest.skip("needs root and unshare -m, to mount a folder read-only")
    await fill(tmp_path / "jobs", "a", "b")
    mount = f'mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path} && exec "$@"'
    with Child(tmp_path / "jobs", "unshare", "-m", "sh", "-c", mount, "sh") as child:
        yield child


async def test_on_a_read_only_mount_reads_work_and_writes_are_refused(bound: Child, tmp_path: Path) -> None:
    assert "opened" == bound.answer()
    assert ["a", "b"] == bound.ask("ids")
    refused = bound.ask("enqueue", ["c"])

    assert "StorageReadOnly" == refused["error"]
    assert "Nothing was written" in refused["message"]
    assert ["a", "b"] == bound.ask("ids")
    await fill(tmp_path / "jobs", "c")
    assert ["a", "b", "c"] == bound.ask("ids")
    assert "StorageReadOnly" == bound.ask("enqueue", ["d"])["error"]


async def test_a_wait_works_on_a_read_only_mount(bound: Child) -> None:
    assert "opened" == bound.answer()

    assert bound.ask("wait", 45.0) is True


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that another user can access."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    with tempfile.TemporaryDirectory(prefix="dibs-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def test_a_user_without_rights_may_not_read(shared: Path) -> None:
    """The message is about reading, not about writing."""
    await fill(shared / "jobs", "a")
    with Child(shared / "jobs", user="nobody") as child:
        answer = child.answer()

    assert "StorageUnavailable" == answer["error"]
    assert "may not read it" in answer["message"]


async def test_a_folder_of_another_user_is_refused(shared: Path) -> None:
    await fill(shared / "jobs", "a")
    for path in [shared / "jobs", *(shared / "jobs").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Child(shared / "jobs", user="nobody") as child:
        answer = child.answer()

    assert "StorageUnavailable" == answer["error"]
    assert "allow_others=1" in answer["message"]


async def test_a_user_who_may_only_read_reads_if_allowed(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIBS_TEST_ALLOW_OTHERS", "1")
    await fill(shared / "jobs", "a")
    for path in [shared / "jobs", *(shared / "jobs").rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    with Child(shared / "jobs", user="nobody") as child:
        assert "opened" == child.answer()
        assert ["a"] == child.ask("ids")
        refused = child.ask("enqueue", ["b"])

    assert "StorageReadOnly" == refused["error"]
    assert ["a"] == await ids_in(shared / "jobs")


async def test_a_user_who_may_not_create_the_folder_is_refused(shared: Path) -> None:
    with Child(shared / "jobs", user="nobody") as child:
        answer = child.answer()

    assert "StorageReadOnly" == answer["error"]
    assert [] == names(shared)
