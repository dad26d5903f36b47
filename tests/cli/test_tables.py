"""Tables fit the terminal and cut no text, and lines are complete."""

from __future__ import annotations

import pytest

from dibs.cli.tables import GAP, cell_width, fold, format_age, table_lines
from tests.cli.shell import Shell
from tests.cli.terminal import Screen, run_in_terminal

LONG = "a_package.with_modules.tasks.send_the_monthly_report"
COLUMNS = ["queue", *(f"#{name}" for name in ("waiting", "scheduled", "active", "handed off", "completed"))]


def drawn(columns: list[str], rows: list[list[str]], limit: int | None) -> list[str]:
    head, body = table_lines(columns, rows, limit)
    return [*head, *body]


def test_a_table_without_a_limit_has_one_line_for_each_row() -> None:
    assert [
        "id    attempts  error",
        "---------------------",
        "a            1  x",
        "long        20  y z",
    ] == drawn(["id", "#attempts", "error"], [["a", "1", "x"], ["long", "20", "y z"]], None)


def test_headings_are_folded_before_text() -> None:
    lines = drawn(["queue", "#handed off"], [["a queue", "12"]], 16)

    assert ["queue    handed", "            off", "---------------", "a queue      12"] == lines


def test_text_is_folded_between_words() -> None:
    lines = drawn(["id", "error"], [["some-id", "no route to that host"]], 26)

    assert ["some-id  no route to that", "         host"] == lines[2:]


def test_numbers_and_whole_text_are_never_folded() -> None:
    lines = drawn(["id", "=time"], [["an-id-with-many-letters", "2026-11-22T20:09:26Z"]], 34)

    assert ["an-id-with-m  2026-11-22T20:09:26Z", "any-letters"] == lines[2:]


def test_a_row_that_does_not_fit_has_its_first_cell_on_a_line_of_its_own() -> None:
    lines = drawn(COLUMNS, [[LONG, *("1234567",) * 5]], 60)

    assert "queue" == lines[0]
    assert LONG in lines
    assert 60 >= max(map(len, lines))
    assert 5 == lines[-1].count("1234567")


@pytest.mark.parametrize("limit", [40, 57, 80, 200])
def test_no_line_is_wider_than_the_limit_and_no_text_is_lost(limit: int) -> None:
    rows = [[LONG * count, "12", "=", "報告" * 30 * count] for count in range(1, 4)]
    lines = drawn(["id", "#attempts", "=kind", "payload"], rows, limit)

    assert limit >= max(map(cell_width, lines))
    assert LONG.count("_") * 6 == sum(line.count("_") for line in lines)
    assert 360 == sum(line.count("報") + line.count("告") for line in lines)


def test_text_is_folded_to_the_columns_that_it_takes() -> None:
    assert ["報告", "報告"] == fold("報告報告", 5)
    assert 4 == cell_width("報告")
    assert 2 == GAP


def test_an_age_has_one_unit() -> None:
    ages = [-5, 59_000, 60_000, 3_600_000 * 23, 86_400_000 * 9]

    assert ["0 s", "59 s", "1 min", "23 h", "9 d"] == [format_age(ms) for ms in ages]


QUEUES = ("emails", LONG, "q" * 300)
READING = [
    ("counts",),
    ("show",),
    ("list", "emails"),
    ("list", LONG),
    ("prune",),
    ("failures",),
    ("workers",),
    ("configure", LONG),
]


@pytest.mark.parametrize("words", READING, ids=" ".join)
def test_every_table_is_whole_at_80_columns(shell: Shell, words: tuple[str, ...]) -> None:
    for queue in QUEUES:
        shell.type("enqueue", queue, '{"text": "some words, many words"}', "--id", f"id-of-{queue[:40]}")
        shell.type("enqueue", queue, "1", "--delay", "1h")
    screen = run_in_terminal(shell, *words)

    assert 0 == screen.code
    assert 80 >= max(map(len, without_url(screen)))
    if words[0] in ("counts", "show", "prune"):
        # The names are in the table, folded to several lines if necessary.
        assert (1, True) == (screen.text.count("emails"), 300 <= screen.text.count("q"))
        assert LONG.count("_") <= screen.text.count("_")


def without_url(screen: Screen) -> list[str]:
    """Return the lines without that of the URL of the storage, which is never folded."""
    return [line for line in screen.lines if not line.startswith("storage ")]


def test_columns_without_content_are_left_out(shell: Shell) -> None:
    shell.type("enqueue", "emails", "1")

    assert ["queue   waiting  active  completed  failed"] == run_in_terminal(shell, "counts").lines[:1]
    shell.type("enqueue", "emails", "1", "--delay", "1h")
    assert "scheduled" in run_in_terminal(shell, "counts").lines[0]
    assert "cancelled" not in run_in_terminal(shell, "counts").text


FORMATS = [
    ("counts", "emails\t1\t0\t0\t0\t0\t0\t0\t0"),
    ("show", "emails\t1\t0\t0\t0\t0\t0\t"),
    ("show emails a", "current.priority\t7"),
    ("list emails", f'\t0\t7\t\t"{"x" * 100}\\t"'),
    ("configure emails", "log_age\t1d"),
]


@pytest.mark.parametrize(("words", "line"), FORMATS, ids=[words for words, _ in FORMATS])
def test_lines_are_complete_and_separated_by_tabs(shell: Shell, words: str, line: str) -> None:
    shell.type("enqueue", "emails", f'"{"x" * 100}\\t"', "--id", "a", "--priority", "7")
    result = shell.type(*words.split(), "--format", "lines")

    assert 0 == result.exit_code
    assert line in result.stdout


@pytest.mark.parametrize("words", ["counts", "show", "show emails a", "list emails", "events emails"])
def test_json_is_short_for_format_json(shell: Shell, words: str) -> None:
    shell.type("enqueue", "emails", "1", "--id", "a")
    printed = {
        shell.type(*words.split(), *option).stdout
        for option in (["--json"], ["--format", "json"], ["--json", "--format", "json"])
    }

    assert 1 == len(printed)


def test_two_formats_are_a_usage_error(shell: Shell) -> None:
    result = shell.type("counts", "--json", "--format", "lines")

    assert (2, "") == (result.exit_code, result.stdout)
    assert "--json and --format lines exclude each other" in result.stderr


@pytest.mark.parametrize("option", [["--format", "json"], ["--format=json"]])
def test_with_format_json_an_error_is_json(shell: Shell, option: list[str]) -> None:
    assert shell.type("counts", "--url", "foo://h", *option).stderr.startswith('{"error":')
