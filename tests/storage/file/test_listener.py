"""Notifications of commits: without them a wait polls; and the log filter for watchdog."""

from __future__ import annotations

import logging
import shutil
import subprocess
from pathlib import Path

import pytest

from dibs.storage.file.listener import CommitWatch
from tests.storage.file.child_process import Child

WATCHDOG = "watchdog.observers.inotify"


def test_only_the_message_about_a_stopped_observer_is_filtered(caplog: pytest.LogCaptureFixture) -> None:
    assert CommitWatch is not None
    logging.getLogger(WATCHDOG).error("InotifyEmitter.queue_events() called when the thread is inactive")
    logging.getLogger(WATCHDOG).error("something else")

    assert [record.getMessage() for record in caplog.records] == ["something else"]


NO_INOTIFY = ("unshare", "--user", "--map-root-user", "sh", "-c",
              'echo 0 > /proc/sys/user/max_inotify_instances && exec "$@"', "sh")  # fmt: skip


def can_limit() -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*NO_INOTIFY, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_limit(), reason="needs a user namespace, to allow no inotify instance")
def test_without_inotify_a_wait_polls_and_says_so_once(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with Child(tmp_path / "jobs", *NO_INOTIFY) as child:
        assert "opened" == child.answer()
        for _ in range(3):
            assert child.ask("wait", 0.01) is False
        assert "done" == child.ask("enqueue", ["a"])
        assert child.ask("wait", 0.01) is True

    assert 1 == capfd.readouterr().err.count("waits poll instead")
