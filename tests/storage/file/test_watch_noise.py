"""What watchdog says when its thread meets the stop of its observer is nobody's news."""

from __future__ import annotations

import logging

import pytest

from dibs.storage.file.listener import CommitWatch

WATCHDOG = "watchdog.observers.inotify"


def test_the_race_of_a_stop_is_passed_over_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    assert CommitWatch is not None
    logging.getLogger(WATCHDOG).error("InotifyEmitter.queue_events() called when the thread is inactive")
    logging.getLogger(WATCHDOG).error("something else")

    assert [record.getMessage() for record in caplog.records] == ["something else"]
