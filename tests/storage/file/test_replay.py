"""The replay of commits: a commit that is intact on disk, but not a commit for this version of dibs."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs.errors import StorageDamaged
from dibs.storage.file.frames import encode_frame
from tests.storage.file.folder import commit, fill, ids_in


async def test_the_error_for_a_commit_that_cannot_be_decoded_names_its_file(tmp_path: Path) -> None:
    await fill(tmp_path, "a", "b")
    commit(tmp_path, 2).write_bytes(encode_frame(2, b"\xc1"))

    with pytest.raises(StorageDamaged, match="cannot decode it") as caught:
        await ids_in(tmp_path)

    assert str(commit(tmp_path, 2)) in str(caught.value)
