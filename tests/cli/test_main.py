"""The `dibs` command itself: help, errors, exit codes, commands of other packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints, entry_points, version
from pathlib import Path

import pytest
import rich_click as click

from dibs.cli import main
from dibs.cli.errors import UsageError, exit_code_of, first_error
from dibs.cli.output import ExitCode, escape
from dibs.errors import NoStorage, OutcomeUnknown, Refused, StorageFull
from tests.cli.shell import DIBS, Shell

BUILT_IN = [info.name for info in main.COMMANDS if not info.extra]


def test_help_lists_every_command_and_the_demo(shell: Shell) -> None:
    for words in ([], ["--help"], ["-h"]):
        result = shell.type(*words)

        assert 0 == result.exit_code
        assert [] == [info.name for info in main.COMMANDS if f" {info.name} " not in result.stdout]
        assert "dibs demo" in result.stdout


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_command_has_an_example_and_the_common_options(shell: Shell, name: str) -> None:
    result = shell.type(name, "--help")

    assert 0 == result.exit_code
    assert f"dibs {name}" in result.stdout.partition("Usage:")[2].partition("Example")[2]
    assert "--url" in result.stdout
    # `dibs mcp` has no other output than JSON.
    assert name == "mcp" or "--json" in result.stdout


def test_help_texts_are_printed_as_they_are(shell: Shell) -> None:
    """Square brackets stay, paragraphs have a blank line between them, commands are in panels."""
    screen = shell.type("--help").stdout
    panels = ["Options", *dict.fromkeys(info.panel for info in main.COMMANDS)]

    assert "url under [tool.dibs] in" in screen
    assert ["", "dibs demo", ""] == [
        line.strip() for line in screen.partition("and no setup:")[2].splitlines()
    ][1:4]
    assert panels == [line.split("─")[1].strip() for line in screen.splitlines() if line.startswith("╭")]


def test_help_explains_arguments_and_defaults(shell: Shell) -> None:
    screen = shell.type("enqueue", "--help").stdout

    assert "enqueue [OPTIONS] QUEUE JSON" in screen
    assert "Payload of the job. Use - to read it from stdin. [required]" in screen
    assert "-1000 to 1000. Higher runs first. [default: 0]" in screen
    assert "[x" not in shell.type("amend", "--help").stdout
    assert "[x" not in shell.type("certify", "--help").stdout


def loaded(*words: str) -> set[str]:
    """Return the modules that a `dibs` process imports for these arguments."""
    watch = "import atexit, sys; atexit.register(lambda: print(*sys.modules))"
    code = f"{watch}; from dibs.cli.main import app; app({list(words)})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    return {*done.stdout.splitlines()[-1].split()}


def test_a_command_is_imported_only_to_run_it() -> None:
    assert set() == HEAVY & loaded("--help")


HEAVY = {
    "dibs.cli.commands.counts",
    "dibs.worker",
    "dibs_conformance",
    "hypothesis",
    "multiprocessing",
    "watchdog",
}


def test_a_command_without_a_table_does_not_import_rich(shell: Shell) -> None:
    """The command does not import importlib.metadata either, which needs the email package."""
    assert set() == {"rich", "importlib.metadata", "email", "dibs.worker"} & loaded(
        "enqueue", "q", "1", "--url", shell.url
    )


def test_version(shell: Shell) -> None:
    assert f"dibs {version('dibs')}\n" == shell.type("--version").stdout


def test_a_typing_mistake_gets_a_suggestion(shell: Shell) -> None:
    result = shell.type("count")

    assert 2 == result.exit_code
    assert "'counts'" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Refused(), 1),
        (StorageFull(), 1),
        (PermissionError(13, "no", "x"), 1),
        (NoStorage(), 2),
        (UsageError(), 2),
        (OutcomeUnknown(), 3),
        (KeyError(), 3),
    ],
)
def test_every_error_has_its_code(error: Exception, code: int) -> None:
    assert ExitCode(code) == exit_code_of(error)


def test_the_first_of_several_errors_is_printed() -> None:
    group = ExceptionGroup("tasks", [ExceptionGroup("more", [StorageFull("no room")]), KeyError()])

    assert "no room" == str(first_error(group))


CASES = {
    "wrong json": (("enqueue", "q", "{"), 2, "the payload is not valid JSON"),
    "text without quotes": (("enqueue", "q", "hello"), 2, """'"hello"'"""),
    "a limit": (("enqueue", "q", "1", "--priority", "5000"), 1, "priority is 5000"),
    "an empty id": (("enqueue", "q", "1", "--id", ""), 1, "id is empty"),
    "a reserved queue": (("enqueue", "q!fail", "1"), 1, "'!fail'"),
    "no id": (("show", "q"), 2, "the id is missing"),
    "an unknown option": (("counts", "--nope"), 2, "--nope"),
    "no number": (("list", "q", "--limit", "x"), 2, "'x' is not a valid number (see"),
    "a number out of bounds": (("list", "q", "--limit", "0"), 2, "1<=x<=1000"),
    "not a number": (("worker", "m:a", "--grace", "nan"), 2, "'nan' is not a valid duration"),
    "no duration": (("enqueue", "q", "1", "--delay", "5x"), 2, "'5x' is not a duration; write seconds"),
    "a duration with a sign": (("worker", "m:a", "--grace", "-5m"), 2, "'-5m' is not a duration"),
    "a duration that is too long": (("enqueue", "q", "1", "--delay", "200000d"), 2, "100,000 days"),
    "no such directory": (("counts", "--url", "file:./nowhere"), 1, "no directory"),
    "an unknown scheme": (("counts", "--url", "foo://h"), 2, "file:, memory:"),
    "memory": (("counts", "--url", "memory:"), 1, "one process"),
    "memory for a worker": (("worker", "m:a", "--url", "memory:"), 1, "one process"),
}


@pytest.mark.parametrize(("words", "code", "message"), CASES.values(), ids=CASES)
def test_a_mistake_is_one_clear_line(shell: Shell, words: tuple[str, ...], code: int, message: str) -> None:
    result = shell.type(*words)

    assert (code, "", 1) == (result.exit_code, result.stdout, len(result.stderr.splitlines()))
    assert message in result.stderr
    assert result.stderr.startswith("dibs: ")
    assert not Path("nowhere").exists()


def test_with_json_an_error_is_json(shell: Shell) -> None:
    result = shell.type("enqueue", "q", "1", "--priority", "5000", "--json")

    assert "Refused" == json.loads(result.stderr)["error"]["type"]
    assert "priority is 5000" in json.loads(result.stderr)["error"]["message"]


def test_no_password_is_shown() -> None:
    assert "cannot reach redis://***@host/0" == escape("cannot reach redis://user:pa:ss@host/0")


def test_exit_codes_reach_the_shell(shell: Shell) -> None:
    url = ("--url", shell.url)
    codes = [
        shell.run(*words).returncode for words in (("show", "q"), ("enqueue", "q", "1", *url), ("nope",))
    ]

    assert [2, 0, 2] == codes


def test_the_url_is_the_option_then_the_variable_then_the_project(shell: Shell) -> None:
    Path("pyproject.toml").write_text("[tool.dibs]\nurl = 'file:./from-project'\n")
    shell.run("enqueue", "q", "1")
    shell.type("enqueue", "q", "1", url="file:./from-variable")
    shell.type("enqueue", "q", "1", "--url", "file:./from-option")

    assert ["from-option", "from-project", "from-variable"] == sorted(p.name for p in Path().glob("from-*"))


def test_without_a_url_the_error_says_how_to_set_one(shell: Shell) -> None:
    result = shell.run("counts")

    assert 2 == result.returncode
    assert "DIBS_URL" in result.stderr


def test_a_broken_pipe_prints_no_traceback(shell: Shell) -> None:
    shell.type("enqueue", "q", "1")
    words = " ".join(f"'{word}'" for word in (*DIBS, "show", "--url", shell.url))
    done = subprocess.run(["sh", "-c", f"{words} | true"], capture_output=True, text=True, check=False)

    assert "Traceback" not in done.stderr


def test_a_command_of_another_package_is_listed_and_run(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "greet", f"{__name__}:greet")

    assert " greet " in shell.type("--help").stdout
    assert "hello ada\n" == shell.type("greet", "ada").output
    assert "The name." in shell.type("greet", "--help").stdout
    assert 7 == shell.type("greet", "nobody").exit_code


@click.command
@click.argument("name", help="The name.")
@click.pass_context
def greet(ctx: click.Context, name: str) -> str:
    """Say hello. The returned text is not an exit code."""
    if name == "nobody":
        ctx.exit(7)
    click.echo(f"hello {name}")
    return name


def install(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """Pretend that an installed package has a command."""
    points = EntryPoints([EntryPoint(name, value, main.ENTRY_POINT_GROUP)])
    monkeypatch.setattr("importlib.metadata.entry_points", points.select)


def test_an_entry_point_that_is_not_a_click_command_is_a_usage_error(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, "greet", f"{__name__}:install")
    result = shell.type("greet", "ada")

    assert (2, "") == (result.exit_code, result.stdout)
    assert "is not a click command" in result.stderr


def test_a_missing_extra_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, "certify", "a_module_that_is_not_there:certify")
    result = shell.type("certify", "file:./x")

    assert 2 == result.exit_code
    assert "pip install 'dibs[conformance]'" in result.stderr


def test_worker_processes_do_not_import_the_command_line() -> None:
    """A spawned worker process imports the module of the `dibs` script."""
    [script] = entry_points(group="console_scripts", name="dibs")
    imported = f"import {script.module}, sys; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", imported], capture_output=True, text=True, check=True)

    assert script.module in modules.stdout.split()
    assert not {"click", "rich", "dibs.cli.main"} & {*modules.stdout.split()}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_reader_that_has_read_enough_gets_no_error(shell: Shell) -> None:
    shell.type("enqueue", "mail", "1", "--id", "a")
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as closed:
        command = shell.start("show", "mail", "a", "--url", shell.url, stdout=closed, stderr=subprocess.PIPE)
        _, errors = command.communicate(timeout=30)

    assert (ExitCode.OUTPUT_FAILED, "") == (command.returncode, errors)


@pytest.mark.parametrize("stderr", [subprocess.PIPE, subprocess.STDOUT])
@pytest.mark.parametrize("words", [("enqueue", "mail", "1", "--id", "b"), ("show", "mail", "a"), ("counts",)])
def test_output_that_cannot_be_written_is_no_refusal(
    shell: Shell, words: tuple[str, ...], stderr: int
) -> None:
    shell.type("enqueue", "mail", "1", "--id", "a")
    with Path("/dev/full").open("w") as full:
        command = shell.start(*words, "--url", shell.url, stdout=full, stderr=stderr)
        _, errors = command.communicate(timeout=30)

    assert ExitCode.OUTPUT_FAILED == command.returncode
    assert (errors is None) == (stderr == subprocess.STDOUT)
    assert errors is None or "could not be written: No space left on device" in errors
    assert (words[0] == "enqueue") == ("waiting" in shell.type("show", "mail", "b").stdout)
