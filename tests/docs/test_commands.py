"""Each `dibs` command that a page shows has the commands, options and values of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.deploy.files import parse_command
from tests.docs.pages import DOCS, Page

PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
#: Variables before a command, and the end of the command: a pipe, a redirection, a comment, an `&`.
VARIABLES = re.compile(r"^(?:[A-Z_]+=\S+ )+")
END = re.compile(r"\s+(?:[|>&]|#\s|2>)")


def shown_commands(name: str) -> Iterator[str]:
    """Yield the commands of the console blocks of a page, also of those that do not run."""
    for block in Page(name).blocks:
        if block.language not in ("console", "bash", "sh"):
            continue
        lines = re.sub(r"\\\n\s*", " ", block.text).splitlines()
        # If a line begins with a prompt, the lines without a prompt are output.
        if any(line.startswith("$ ") for line in lines):
            lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        words = (VARIABLES.sub("", line) for line in lines)
        yield from (END.split(line)[0] for line in words if re.match(r"dibs [a-z]", line))


COMMANDS = [(name, command) for name in PAGES for command in shown_commands(name)]


@pytest.mark.parametrize(("name", "command"), COMMANDS)
def test_a_shown_command_exists(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The warehouse of the pages, which must exist.
    (tmp_path / "history").mkdir()
    monkeypatch.chdir(tmp_path)

    assert parse_command(command) is not None


def test_the_pages_show_commands() -> None:
    assert len(COMMANDS) > 40


@pytest.mark.parametrize(
    "command", ["dibs retyr emails", "dibs counts --jsno", "dibs list q --state sleeping"]
)
def test_a_command_with_a_mistake_is_found(command: str) -> None:
    with pytest.raises(click.UsageError):
        parse_command(command)
