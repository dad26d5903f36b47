"""The log filter for watchdog."""

from __future__ import annotations

import logging

import pytest

from dibs.storage.file.listener import CommitWatch

WATCHDOG = "watchdog.observers.inotify"


def test_only_the_message_about_a_stopped_observer_is_filtered(caplog: pytest.LogCaptureFixture) -> None:
    assert CommitWatch is not None
    logging.getLogger(WATCHDOG).error("InotifyEmitter.queue_events() called when the thread is inactive")
    logging.getLogger(WATCHDOG).error("something else")

    assert [record.getMessage() for record in caplog.records] == ["something else"]
