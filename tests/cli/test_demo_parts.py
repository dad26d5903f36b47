"""Parts of the demo without a storage: finding files, digests, statistics, the summary line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from attrs import evolve

from dibs.cli.demo.file_tree import find_files, standard_library
from dibs.cli.demo.result import (
    DemoResult,
    Idea,
    Percentiles,
    compute_figures,
    summary_line,
)
from dibs.cli.demo.tasks import compute_digest, verify_digest
from dibs.model.job import Outcome


def plant(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def test_every_regular_file_is_found_in_order(tmp_path: Path) -> None:
    plant(tmp_path, "b/x", "a", ".hidden/y")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    found = find_files(tmp_path)

    assert [".hidden/y", "a", "b/x"] == [str(Path(file.path).relative_to(tmp_path)) for file in found.files]
    assert [] == found.skipped


def test_the_demo_does_not_walk_into_its_own_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "a", ".dibs-demo/format", "sub/.dibs-demo/format", "elsewhere/format")
    monkeypatch.chdir(tmp_path)
    found = find_files(tmp_path, exclude=Path("elsewhere"))

    assert [str(tmp_path / "a")] == [file.path for file in found.files]


def test_a_path_that_cannot_be_an_id_is_skipped_with_a_reason(tmp_path: Path) -> None:
    deep = "/".join(["d" * 100] * 6)
    plant(tmp_path, f"{deep}/long")
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/not-utf8-\xff")).write_text("")
    found = find_files(tmp_path)

    assert [] == found.files
    assert ["512", "surrogate"] == sorted(
        word for _, why in found.skipped for word in ("512", "surrogate") if word in why
    )


def test_the_standard_library_comes_without_packages_and_caches() -> None:
    found = find_files(None)

    assert found.root == str(standard_library())
    assert len(found.files) > 500
    assert [] == [f.path for f in found.files if "/site-packages/" in f.path or "/__pycache__/" in f.path]


@pytest.mark.parametrize(
    ("content", "lines"),
    [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2), (b"\n" * (1 << 20) + b"x", (1 << 20) + 1)],
)
def test_a_file_is_read_whole(tmp_path: Path, content: bytes, lines: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    found = compute_digest(str(path))

    assert (len(content), lines) == (found.size, found.lines)
    assert "" == verify_digest(str(path), found)


def test_a_changed_or_removed_file_is_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    found = compute_digest(str(path))
    path.write_bytes(b"other")
    changed = verify_digest(str(path), found)
    path.unlink()

    assert ("", "") == (changed, verify_digest(str(path), found))


def outcome(run_at: int, claimed_at: int | None, ended_at: int) -> Outcome:
    return Outcome(
        kind="completed",
        fence=1,
        first=1,
        revision=1,
        ended_at=ended_at,
        expires_at=None,
        run_at=run_at,
        claimed_at=claimed_at,
        retries=1,
        stalls=2,
    )


def test_waiting_time_is_counted_from_the_start_of_this_run() -> None:
    found = compute_figures([outcome(100, 250, 260), outcome(210, 220, 300)], 2.0, since=200)

    assert (2, 1.0, 2, 4) == (found.jobs, found.jobs_per_second, found.retries, found.stalls)
    assert (Percentiles(10, 50), Percentiles(10, 80)) == (found.wait_ms, found.run_ms)


def test_a_run_is_good_if_every_part_of_it_is() -> None:
    good = DemoResult(url="", root="", figures=compute_figures([], 0))
    shown, hidden = Idea("x", shown=True, told=""), Idea("x", shown=False, told="")
    good.ideas = [shown]

    assert good.good
    assert not evolve(good, interrupted=True).good
    assert not evolve(good, mismatches=["x"]).good
    assert not evolve(good, ideas=[shown, hidden]).good
    assert "1 DIGESTS WRONG" in summary_line(evolve(good, mismatches=["x"]))
    assert "Run it again" in summary_line(evolve(good, interrupted=True))
