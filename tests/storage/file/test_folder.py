"""Files below an open folder: how they are written, and which rights they have."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs.storage.file.folder import Folder
from tests.storage.file.folder import names


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    folder = Folder(str(tmp_path / "jobs"))
    folder.open()
    folder.check_subfolder("tmp")
    return folder


@pytest.mark.parametrize("umask", [0, 0o777])
def test_a_file_is_written_completely_for_its_owner_only(folder: Folder, umask: int) -> None:
    old = os.umask(umask)
    try:
        _, _, size = folder.write("f", [b"ab", b"c"], fsync=False)
    finally:
        os.umask(old)

    path = Path(folder.path, "f")
    assert (3, b"abc") == (size, path.read_bytes())
    assert 0o600 == stat.S_IMODE(path.stat().st_mode)
    assert ["f", "tmp"] == names(path.parent)


@pytest.mark.parametrize("kind", ["file", "hard link", "symlink", "fifo"])
def test_a_file_under_the_temporary_name_is_removed_and_not_written_to(folder: Folder, kind: str) -> None:
    """A killed writer leaves a file. Another program may have put a link to a file of its own there."""
    target, temporary = Path(folder.path).parent / "target", Path(folder.path, "tmp/f")
    target.write_bytes(b"precious")
    match kind:
        case "file":
            temporary.write_bytes(b"longer than what comes now")
        case "hard link":
            temporary.hardlink_to(target)
        case "symlink":
            temporary.symlink_to(target)
        case _:
            os.mkfifo(temporary)
    folder.write("f", [b"new"], fsync=False)

    assert (b"precious", b"new") == (target.read_bytes(), Path(folder.path, "f").read_bytes())
    assert [] == names(temporary.parent)


def test_a_failed_write_leaves_the_old_file(folder: Folder) -> None:
    folder.write("f", [b"old"], fsync=False)

    def chunks_that_break() -> Iterator[bytes]:
        yield b"n"
        raise MemoryError

    with pytest.raises(MemoryError):
        folder.write("f", chunks_that_break(), fsync=False)

    assert b"old" == Path(folder.path, "f").read_bytes()
    assert ["f", "tmp"] == names(Path(folder.path))


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs a list of open files")
def test_no_descriptor_stays_open(folder: Folder) -> None:
    before = names(Path("/proc/self/fd"))
    for _ in range(20):
        folder.write("f", [b"new"], fsync=True)
        folder.sync("tmp")
        folder.open()

    assert len(before) + 20 > len(names(Path("/proc/self/fd")))
