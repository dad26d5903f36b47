"""A warning that a loop repeats is logged once in a while; other records pass."""

from __future__ import annotations

import logging

import pytest

from dibs.worker.processes import logs
from dibs.worker.processes.logs import repeated_warnings_once_a_minute

logger = logging.getLogger("dibs.worker")


def test_a_repeated_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), repeated_warnings_once_a_minute():
        for turn in range(3):
            logger.warning("waiting failed: %s", "no connection")
            logger.error("%s is lost", turn)
            logger.info("done")

    assert [
        "waiting failed: no connection",
        "0 is lost",
        "done",
        "1 is lost",
        "done",
        "2 is lost",
        "done",
    ] == (caplog.messages)


def test_it_is_logged_again_after_the_pause_and_after_the_worker(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        with repeated_warnings_once_a_minute():
            logger.warning("waiting failed")
            logger.warning("waiting failed")
    monkeypatch.setattr(logs, "QUIET", 0.0)
    with repeated_warnings_once_a_minute():
        logger.warning("waiting failed")
        logger.warning("waiting failed")

    assert 4 == len(caplog.messages)


def test_the_texts_that_are_remembered_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with repeated_warnings_once_a_minute():
        for number in range(logs.MAX_TEXTS + 1):
            logger.warning("%d", number)
        logger.warning("0")

    assert logs.MAX_TEXTS + 2 == len(caplog.messages)
