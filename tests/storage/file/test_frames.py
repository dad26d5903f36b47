"""Files of frames: complete files are read, all others raise CorruptFile."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import StorageTooNew
from dibs.storage.file import frames
from dibs.storage.file.access import CorruptFile
from dibs.storage.file.directory import FORMAT
from dibs.storage.file.frames import (
    HEADER,
    encode_frame,
    read_frame,
    read_frames,
    write_atomically,
)
from tests.storage.file.folder import names

BODY = b"a commit"


def written(folder: Path, content: bytes) -> str:
    path = folder / "f"
    path.write_bytes(content)
    return str(path)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_frame_reads_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, number: int, body: bytes
) -> None:
    path = written(tmp_path_factory.mktemp("frame", numbered=True), encode_frame(number, body))

    assert body == read_frame(path, number)


@pytest.mark.parametrize("length", range(len(encode_frame(7, BODY))))
def test_each_truncation_is_corrupt(tmp_path: Path, length: int) -> None:
    path = written(tmp_path, encode_frame(7, BODY)[:length])

    with pytest.raises(CorruptFile):
        read_frame(path, 7)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("index", range(len(encode_frame(7, BODY))))
def test_each_flipped_byte_is_corrupt(tmp_path: Path, index: int, flip: int) -> None:
    """This includes the header: readers depend on its commit number and its length."""
    content = bytearray(encode_frame(7, BODY))
    content[index] ^= flip

    with pytest.raises(CorruptFile):
        list(read_frames(written(tmp_path, bytes(content))))


@pytest.mark.parametrize("tail", [b"\0", b"dibs", encode_frame(8, b"x")])
def test_a_commit_with_data_after_it_is_corrupt(tmp_path: Path, tail: bytes) -> None:
    with pytest.raises(CorruptFile):
        read_frame(written(tmp_path, encode_frame(7, BODY) + tail), 7)


def test_a_commit_under_another_number_is_corrupt(tmp_path: Path) -> None:
    """A copied or renamed file is not the commit of its name."""
    with pytest.raises(CorruptFile):
        read_frame(written(tmp_path, encode_frame(8, BODY)), 7)


def test_a_length_beyond_the_file_is_corrupt_and_not_read(tmp_path: Path) -> None:
    header = HEADER.pack(frames.MAGIC, FORMAT, 7, 2**63, 0)

    with pytest.raises(CorruptFile):
        read_frame(written(tmp_path, header + BODY), 7)


def test_a_whole_frame_of_a_newer_format_is_too_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum of the frame is right, so the frame is not damaged."""
    monkeypatch.setattr(frames, "FORMAT", FORMAT + 1)
    newer = encode_frame(7, BODY)
    monkeypatch.undo()

    with pytest.raises(StorageTooNew) as caught:
        read_frame(written(tmp_path, newer), 7)

    assert "upgrade dibs" in str(caught.value)


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_a_file_of_several_frames_reads_them_all(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]
) -> None:
    path = written(
        tmp_path_factory.mktemp("frames", numbered=True), b"".join(encode_frame(3, body) for body in bodies)
    )

    assert [(3, body) for body in bodies] == list(read_frames(path))


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    written(tmp_path, encode_frame(7, BODY))
    (tmp_path / "link").symlink_to(tmp_path / "f")

    with pytest.raises(CorruptFile):
        read_frame(str(tmp_path / "link"), 7)


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_fifo_or_folder_is_corrupt_and_does_not_block(tmp_path: Path, kind: str) -> None:
    """open() of a FIFO without a writer would block for ever."""
    path = tmp_path / "f"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()

    with pytest.raises(CorruptFile):
        read_frame(str(path), 7)


def test_a_file_is_written_completely_for_its_owner_only(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        size = write_atomically(str(tmp_path / "f"), str(tmp_path / "t"), [b"ab", b"c"], fsync=False)
    finally:
        os.umask(old)

    assert (3, b"abc") == (size, (tmp_path / "f").read_bytes())
    assert 0o600 == stat.S_IMODE((tmp_path / "f").stat().st_mode)
    assert [tmp_path / "f"] == list(tmp_path.iterdir())


def test_the_leftover_of_a_killed_writer_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"longer than what comes now")
    write_atomically(str(tmp_path / "f"), str(tmp_path / "t"), [b"new"], fsync=False)

    assert b"new" == (tmp_path / "f").read_bytes()


@pytest.mark.parametrize("kind", ["symlink", "fifo"])
def test_a_temporary_file_that_is_a_link_or_fifo_is_not_written_to(tmp_path: Path, kind: str) -> None:
    """The target of a link stays unchanged, and open() of a FIFO does not wait for a reader."""
    (tmp_path / "target").write_bytes(b"precious")
    if kind == "symlink":
        (tmp_path / "t").symlink_to(tmp_path / "target")
    else:
        os.mkfifo(tmp_path / "t")

    with pytest.raises(OSError):  # noqa: PT011 - the error depends on the system
        write_atomically(str(tmp_path / "f"), str(tmp_path / "t"), [b"new"], fsync=False)

    assert b"precious" == (tmp_path / "target").read_bytes()
    assert not (tmp_path / "f").exists()


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")

    def frames_that_break() -> list[bytes]:
        raise MemoryError

    with pytest.raises(MemoryError):
        write_atomically(
            str(tmp_path / "f"), str(tmp_path / "t"), (f for f in [b"n", *frames_that_break()]), fsync=False
        )

    assert b"old" == (tmp_path / "f").read_bytes()


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs a list of open files")
def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    before = names(Path("/proc/self/fd"))
    for _ in range(20):
        write_atomically(str(tmp_path / "f"), str(tmp_path / "t"), [b"new"], fsync=True)

    assert len(before) + 20 > len(names(Path("/proc/self/fd")))
