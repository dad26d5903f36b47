"""`dibs configure` shows and changes the settings of a queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.shell import Shell


def test_configure_changes_only_the_given_settings(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    shell.json("configure", "q", "--max-active", "3", "--retention", "failed=30d", "--log-age", "12h")
    settings = shell.json(
        "configure", "q", "--paused", "yes", "--retention", "cancelled=forever", "--request-key-age", "90",
        "--log-level", "all", "--log-bytes", "1000",
    )["settings"]  # fmt: skip

    assert {
        "paused": True, "max_active": 3, "retention": {"failed": 2_592_000.0, "cancelled": None},
        "log_level": "all", "log_age": 43_200.0, "log_bytes": 1000, "request_key_age": 90.0,
    } == settings  # fmt: skip
    assert settings == shell.json("configure", "q")["settings"]
    assert shell.json("configure", "q", "--max-active", "none")["settings"]["max_active"] is None


def test_a_retention_without_a_kind_is_for_all_kinds(shell: Shell) -> None:
    shown = shell.type("configure", "q", "--retention", "1h30m", "--retention", "failed=0").stdout

    assert 2 == shown.count("1h30m")
    assert "retention failed     0s" in shown


def test_settings_that_differ_are_in_the_list_of_queues(shell: Shell) -> None:
    shell.type("enqueue", "plain", "1")
    shell.type("configure", "q", "--paused", "yes", "--max-active", "3")
    lines = shell.type("show").stdout.splitlines()

    assert ["paused, max_active 3"] == [line[-20:] for line in lines if line.startswith("q ")]
    assert [True] == [line.endswith("0") for line in lines if line.startswith("plain ")]


@pytest.mark.parametrize(
    "words",
    [
        ("--max-active", "-1"), ("--max-active", "many"), ("--paused", "maybe"), ("--retention", "soon"),
        ("--retention", "ended=5m"), ("--retention", "-5"), ("--retention", "nan"), ("--log-age", "-1"),
        ("--log-age", "inf"), ("--log-bytes", "1.5"), ("--log-level", "loud"),
        ("--request-key-age", "200000d"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_bad_setting_changes_nothing(shell: Shell, words: tuple[str, ...]) -> None:
    result = shell.type("configure", "q", "--log-level", "all", *words)

    assert (2, 1) == (result.exit_code, len(result.stderr.splitlines()))
    assert words[0] in result.stderr
    assert not Path("jobs").exists()


def test_configure_without_an_option_does_not_create_a_queue(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")

    assert 1 == shell.type("configure", "typo").exit_code
    assert ["q"] == [*shell.json("counts")["queues"]]
