"""`dibs demo` from the shell: a first run, a second run, changed files, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from msgspec.structs import replace

from dibs.cli.demo.ideas import Idea
from dibs.cli.demo.runner import DemoResult, compare_digest, find_files
from dibs.cli.demo.tasks import compute_digest
from dibs.storage.protocol import Storage
from tests.cli.shell import Shell
from tests.cli.terminal import run_in_terminal
from tests.cli.test_json_output import SHAPES, differences
from tests.storage_urls import new_url, unexpected_lines

UNREADABLE = Path("/proc/self/mem")
IDEAS = {"blocked", "retried", "killed"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for number in range(30):
        path = root / f"folder-{number % 3}" / f"file-{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("line\n" * number)
    return root


def demo(shell: Shell, tree: Path, *words: str) -> Any:
    done = shell.run("demo", str(tree), "--json", *words)

    assert 0 == done.returncode
    assert [] == unexpected_lines(done.stderr)
    return json.loads(done.stdout)


@pytest.mark.long
def test_a_second_run_processes_only_what_changed(shell: Shell, tree: Path) -> None:
    first = demo(shell, tree)
    (tree / "folder-0/file-0.txt").write_text("changed\n")
    (tree / "new").write_text("new\n")
    second = demo(shell, tree)

    assert [] == differences(SHAPES["demo"], first)
    assert IDEAS == {idea["idea"] for idea in first["ideas"]}
    assert (30, 30, 0) == tuple(first[key] for key in ("files", "processed", "already_done"))
    assert (31, 2, 29, 31) == tuple(second[key] for key in ("files", "processed", "already_done", "checked"))
    assert Path(".dibs-demo/format").is_file()


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["redis", "postgresql"])
def test_it_runs_on_a_server_too(
    scheme: str, shell: Shell, tree: Path, request: pytest.FixtureRequest
) -> None:
    """The demo with another storage, with all of its demonstrations."""
    url = new_url(scheme, request)
    first = demo(shell, tree, "--url", url, "--processes", "2")

    assert {(idea, True) for idea in IDEAS} == {(idea["idea"], idea["shown"]) for idea in first["ideas"]}
    assert (30, 30, 0, 30, []) == tuple(
        first[key] for key in ("files", "processed", "already_done", "checked", "mismatches")
    )
    assert not Path(".dibs-demo").exists()


@pytest.mark.long
@pytest.mark.skipif(not UNREADABLE.exists(), reason="only Linux has a file that even root cannot read")
def test_a_file_that_cannot_be_read_is_retried_and_reported(shell: Shell) -> None:
    result = demo(shell, UNREADABLE)

    assert (1, 0, 3) == (result["failed"], result["processed"], result["retries"])
    assert [f"{UNREADABLE}: OSError: [Errno 5] Input/output error"] == result["failures"]


@pytest.mark.long
def test_without_a_terminal_it_prints_plain_lines(shell: Shell, tree: Path) -> None:
    done = shell.run("demo", str(tree), "--url", shell.url)
    lines = done.stdout.splitlines()

    assert (0, "") == (done.returncode, done.stderr)
    assert [] == [line for line in lines if not line.isprintable()]
    assert IDEAS <= {line.split()[0] for line in lines if line.strip()}
    assert re.match(
        r"30 files, 30 of them now at [\d,]+ jobs/s, all digests correct, 3 of 3 demon", lines[-1]
    )
    assert not Path(".dibs-demo").exists()


@pytest.mark.long
def test_on_a_terminal_it_shows_a_bar_and_breaks_no_line_within_a_word(shell: Shell, tree: Path) -> None:
    for number in range(1000):
        (tree / str(number)).touch()
    screen = run_in_terminal(shell, "demo", str(tree.relative_to(shell.folder)))

    assert 0 == screen.code
    assert "━" in screen.text
    assert "3 of 3 demonstrations succeeded" in " ".join(screen.text.split())
    assert [] == [line for line in re.split("[\r\n]", screen.text) if len(line) > 80]


@pytest.mark.long
def test_with_memory_no_worker_is_killed(shell: Shell, tree: Path) -> None:
    done = shell.run("demo", str(tree), "--url", "memory:")

    first_words = {line.split()[0] for line in done.stdout.splitlines() if line.strip()}
    assert 0 == done.returncode
    assert "jobs end with this process, so no worker is killed and no job is kept" in done.stdout
    assert IDEAS - {"killed"} == IDEAS & first_words
    assert "2 of 2 demonstrations succeeded" in done.stdout


@pytest.mark.parametrize("words", [["nowhere"], ["--processes", "0"], ["--url", "nope:"]])
def test_a_usage_error_is_reported_before_the_demo_starts(shell: Shell, words: list[str]) -> None:
    done = shell.run("demo", *words)

    assert (2, 1) == (done.returncode, len(done.stderr.splitlines()))
    assert not Path(".dibs-demo").exists()


@pytest.mark.long
def test_the_next_run_continues_an_interrupted_one(shell: Shell, tmp_path: Path) -> None:
    """No job is lost, and no completed job runs again."""
    tree = tmp_path / "many"
    tree.mkdir()
    for number in range(3000):
        (tree / f"{number}").write_text(f"{number}\n")

    first = asyncio.run(interrupted(shell, tree))
    second = demo(shell, tree, "--url", shell.url)
    ends = asyncio.run(completed(shell))

    assert first["interrupted"]
    assert 0 < first["processed"] < 3000
    assert (first["processed"], 3000) == (second["already_done"], second["checked"])
    assert {1} == set(ends.values())
    assert 3000 == len(ends)


async def interrupted(shell: Shell, tree: Path) -> Any:
    """Press Ctrl-C as soon as the first files are done."""
    async with shell.storage() as storage:
        process = shell.start("demo", str(tree), "--json", "--url", shell.url)
        while not (await storage.events("files")).events:
            await storage.wait(["files"], for_="events", timeout=0.05)
        process.send_signal(signal.SIGINT)
        out, err = await asyncio.to_thread(process.communicate, timeout=30)

    assert (130, "") == (process.returncode, err)
    return json.loads(out)


async def completed(shell: Shell) -> Counter[str]:
    """Return how often the job of each file completed, by the event log."""
    async with shell.storage() as storage:
        return Counter([event.id async for event in log(storage) if event.kind == "completed"])


async def log(storage: Storage) -> Any:
    after: str | None = None
    while True:
        page = await storage.events("files", after=after, limit=1000)
        for _, event in page.events:
            yield event
        if not page.events:
            return
        after = page.offset


# -- Parts of the demo without a storage: finding files, digests, the summary line -------------------


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
