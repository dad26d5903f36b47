"""Parts of the demo without a storage: finding files, digests, the summary line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve
from msgspec.structs import replace

from dibs.cli.demo.ideas import Idea
from dibs.cli.demo.runner import DemoResult, compare_digest, find_files
from dibs.cli.demo.tasks import compute_digest


def plant(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_every_regular_file_is_found_in_order(tmp_path: Path) -> None:
    plant(tmp_path, "b/x", "a", ".hidden/y")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    found = find_files(tmp_path)

    assert ["a", ".hidden/y", "b/x"] == [str(Path(path).relative_to(tmp_path)) for path in found.files]
    assert [] == found.skipped


def test_the_demo_does_not_walk_into_its_own_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "a", ".dibs-demo/format", "sub/.dibs-demo/format", "elsewhere/format")
    monkeypatch.chdir(tmp_path)
    found = find_files(tmp_path, exclude=Path("elsewhere"))

    assert [str(tmp_path / "a")] == list(found.files)


def test_a_path_that_cannot_be_an_id_is_skipped_with_a_reason(tmp_path: Path) -> None:
    deep = "/".join(["d" * 100] * 6)
    plant(tmp_path, f"{deep}/long")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/not-utf8-\xff")).write_text("")
    found = find_files(tmp_path)

    assert {} == found.files
    assert ["512", "surrogate"] == sorted(
        word for _, why in found.skipped for word in ("512", "surrogate") if word in why
    )


def test_the_standard_library_comes_without_packages_and_caches() -> None:
    found = find_files(None)

    assert len(found.files) > 500
    assert [] == [path for path in found.files if "/site-packages/" in path or "/__pycache__/" in path]


def test_a_wrong_digest_is_found_unless_the_file_was_changed_or_removed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    found = compute_digest(str(path))
    right, wrong = (compare_digest(str(path), stored) for stored in (found, replace(found, sha256="0")))
    path.write_bytes(b"other")
    changed = compare_digest(str(path), found)
    path.unlink()

    assert ("", "", "") == (right, changed, compare_digest(str(path), found))
    assert "the job computed 0..." in wrong


def test_a_run_is_good_if_every_part_of_it_is() -> None:
    shown, hidden = Idea("x", shown=True, told=""), Idea("x", shown=False, told="")
    good = DemoResult(url="", root="", ideas=[shown])

    assert good.good
    assert not evolve(good, interrupted=True).good
    assert not evolve(good, mismatches=["x"]).good
    assert not evolve(good, ideas=[shown, hidden]).good
    assert "1 DIGESTS WRONG" in evolve(good, mismatches=["x"]).summary()
    assert "Run it again" in evolve(good, interrupted=True).summary()
