"""`dibs configure` shows and changes the settings of a queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs.cli.settings_text import parse_rate
from dibs.client.options.queue_settings import format_rate
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
        "log_level": "all", "log_age": 43_200.0, "log_bytes": 1000, "log_results": 0, "request_key_age": 90.0,
        "fail_handler": False, "per_key": None, "rate": None, "key_rate": None, "max_waiting": None,
        "when_full": "refuse",
    } == settings  # fmt: skip
    assert settings == shell.json("configure", "q")["settings"]
    assert shell.json("configure", "q", "--max-active", "none")["settings"]["max_active"] is None


def test_a_full_queue_takes_no_job_and_the_command_says_so(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    settings = shell.json("configure", "q", "--max-waiting", "1")["settings"]
    refused = shell.type("enqueue", "q", "2", "--id", "b")
    shell.type("configure", "q", "--when-full", "drop_new")
    dropped = shell.type("enqueue", "q", "2", "--id", "b", "--json")
    shell.type("configure", "q", "--max-waiting", "none")

    assert (1, "refuse") == (settings["max_waiting"], settings["when_full"])
    assert (1, "full q/b\n") == (refused.exit_code, refused.stdout)
    assert "q/b was refused: the queue has as many waiting jobs as its max_waiting allows" in refused.stderr
    assert 1 == dropped.exit_code
    assert '"status":"dropped"' in dropped.stdout
    assert 0 == shell.type("enqueue", "q", "2").exit_code
    assert 2 == shell.type("configure", "q", "--max-waiting", "0").exit_code


def test_configure_sets_limits_and_none_removes_them(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    words = ["--per-key", "1", "--rate", "5/s burst 10", "--key-rate", "10/m", "--log-results", "100"]
    settings = shell.json("configure", "q", *words, "--fail-handler", "yes")["settings"]
    shown = shell.type("show").stdout
    removed = shell.json("configure", "q", "--per-key", "none", "--rate", "none", "--key-rate", "none")

    limits = {name: settings[name] for name in ("per_key", "rate", "key_rate", "log_results", "fail_handler")}
    assert {
        "per_key": 1,
        "rate": {"starts": 5, "per": 1.0, "burst": 10},
        "key_rate": {"starts": 10, "per": 60.0, "burst": 1},
        "log_results": 100,
        "fail_handler": True,
    } == limits
    assert "per_key 1, rate 5/s burst 10, key_rate 10/m, log_results 100, fail_handler yes" in shown
    assert [None] * 3 == [removed["settings"][name] for name in ("per_key", "rate", "key_rate")]


@pytest.mark.parametrize(
    "text", ["5/s", "10/m", "100/h", "3/d", "10/30s", "7/1m30s", "5/s burst 10", "2/20ms"]
)
def test_the_text_of_a_rate_is_shown_as_it_is_written(text: str) -> None:
    assert text == format_rate(parse_rate("--rate", text).to_model())


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
        ("--request-key-age", "200000d"), ("--per-key", "0"), ("--per-key", "one"), ("--rate", "0/s"),
        ("--rate", "5"), ("--rate", "5/fortnight"), ("--rate", "5/s burst 0"), ("--rate", "1/40d"),
        ("--key-rate", "-1/s"), ("--key-rate", "9999999/s"), ("--log-results", "4097"),
        ("--fail-handler", "maybe"),
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
