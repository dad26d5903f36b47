"""Files of frames: complete files are read, all others raise CorruptFile."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dibs.errors import StorageTooNew
from dibs.storage.file import frames
from dibs.storage.file.directory import FORMAT
from dibs.storage.file.folder import CorruptFile, Folder
from dibs.storage.file.frames import HEADER, encode_frame, read_frame, read_frames

BODY = b"a commit"


def opened(path: Path) -> Folder:
    folder = Folder(str(path), allow_others=True)
    folder.open()
    return folder


def written(path: Path, content: bytes) -> Folder:
    """Return a folder with the file `f`."""
    (path / "f").write_bytes(content)
    return opened(path)


def read_body(folder: Folder, number: int) -> bytes:
    body, _ = read_frame(folder, "f", number)
    return body


@given(st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_a_frame_reads_back_unchanged(
    tmp_path_factory: pytest.TempPathFactory, number: int, body: bytes
) -> None:
    folder = written(tmp_path_factory.mktemp("frame", numbered=True), encode_frame(number, body))

    assert body == read_body(folder, number)


@pytest.mark.parametrize("length", range(len(encode_frame(7, BODY))))
def test_each_truncation_is_corrupt(tmp_path: Path, length: int) -> None:
    folder = written(tmp_path, encode_frame(7, BODY)[:length])

    with pytest.raises(CorruptFile):
        read_body(folder, 7)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
@pytest.mark.parametrize("index", range(len(encode_frame(7, BODY))))
def test_each_flipped_byte_is_corrupt(tmp_path: Path, index: int, flip: int) -> None:
    """This includes the header: readers depend on its commit number and its length."""
    content = bytearray(encode_frame(7, BODY))
    content[index] ^= flip

    with pytest.raises(CorruptFile):
        list(read_frames(written(tmp_path, bytes(content)), "f"))


@pytest.mark.parametrize("tail", [b"\0", b"dibs", encode_frame(8, b"x")])
def test_a_commit_with_data_after_it_is_corrupt(tmp_path: Path, tail: bytes) -> None:
    with pytest.raises(CorruptFile):
        read_body(written(tmp_path, encode_frame(7, BODY) + tail), 7)


def test_a_commit_under_another_number_is_corrupt(tmp_path: Path) -> None:
    """A copied or renamed file is not the commit of its name."""
    with pytest.raises(CorruptFile):
        read_body(written(tmp_path, encode_frame(8, BODY)), 7)


def test_a_length_beyond_the_file_is_corrupt_and_not_read(tmp_path: Path) -> None:
    header = HEADER.pack(frames.MAGIC, FORMAT, 7, 2**63, 0)

    with pytest.raises(CorruptFile):
        read_body(written(tmp_path, header + BODY), 7)


def test_a_whole_frame_of_a_newer_format_is_too_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum of the frame is right, so the frame is not damaged."""
    monkeypatch.setattr(frames, "FORMAT", FORMAT + 1)
    newer = encode_frame(7, BODY)
    monkeypatch.undo()

    with pytest.raises(StorageTooNew) as caught:
        read_body(written(tmp_path, newer), 7)

    assert "upgrade dibs" in str(caught.value)


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_a_file_of_several_frames_reads_them_all(
    tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]
) -> None:
    content = b"".join(encode_frame(3, body) for body in bodies)
    folder = written(tmp_path_factory.mktemp("frames", numbered=True), content)

    assert [(3, body) for body in bodies] == list(read_frames(folder, "f"))


def test_a_symlink_is_not_followed(tmp_path: Path) -> None:
    folder = written(tmp_path, encode_frame(7, BODY))
    (tmp_path / "link").symlink_to(tmp_path / "f")

    with pytest.raises(CorruptFile):
        read_frame(folder, "link", 7)


@pytest.mark.parametrize("kind", ["fifo", "folder"])
def test_a_fifo_or_folder_is_corrupt_and_does_not_block(tmp_path: Path, kind: str) -> None:
    """open() of a FIFO without a writer would block for ever."""
    path = tmp_path / "f"
    if kind == "fifo":
        os.mkfifo(path)
    else:
        path.mkdir()

    with pytest.raises(CorruptFile):
        read_body(opened(tmp_path), 7)


@pytest.mark.parametrize("zeros", ["read_frame", "is_torn"])
def test_a_long_body_is_checked_before_it_is_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zeros: str
) -> None:
    """A file with a hole may say any length. Reading its zeros at once would end the process."""
    size = 1 << 40
    written(tmp_path, HEADER.pack(frames.MAGIC, FORMAT, 7, size, 0))
    os.truncate(tmp_path / "f", HEADER.size + size)
    # A terabyte of zeros takes minutes, so the check stops at its first piece.
    monkeypatch.setattr(frames, "_checksum", lambda *_: -1)

    if zeros == "is_torn":
        assert frames.is_torn(opened(tmp_path), "f")
    else:
        with pytest.raises(CorruptFile):
            read_body(opened(tmp_path), 7)


def test_a_body_that_is_checked_in_pieces_reads_back_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "MAX_UNCHECKED", 10)
    monkeypatch.setattr(frames, "CHUNK", 7)
    body = bytes(range(256))

    assert body == read_body(written(tmp_path, encode_frame(7, body)), 7)
