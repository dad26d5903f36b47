"""The programs of the reference pages run, and print the output that the pages show."""

from __future__ import annotations

import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import pytest

from dibs.model import transition_table
from dibs.model.events import AttemptKind, NoteKind
from dibs.model.limits import LIMITS
from dibs.model.requests import SettingsPatch
from dibs.storage.file.directory import FORMAT
from dibs.storage.postgres.queries import migrations
from dibs.storage.protocol import Storage
from dibs.storage.redis.network.opening import LAYOUT
from tests.bad_input.calls import CALLS
from tests.bad_input.commands import COMMANDS
from tests.bad_input.declarations import DECLARATIONS
from tests.bad_input.urls import URLS
from tests.bad_input.verbs import VERBS
from tests.deploy.files import parse_command
from tests.docs.pages import DOCS, OUTPUT, Block, Page
from tests.source import PROJECT

PROGRAMS = [
    pytest.param(block, id=f"{name}-{number}")
    for name in ("app", "batches", "flows", "handlers", "history")
    for number, block in enumerate(Page(f"reference/{name}.md").python_blocks)
]


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_of_the_page_prints_its_output(program: Block, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program.text)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "program.py"),
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    printed, errors = await process.communicate()

    assert (0, b"") == (process.returncode, errors)
    assert OUTPUT.findall(program.text) == printed.decode().splitlines()


# -- Each `dibs` command that a page shows has the commands, options and values of the command line --


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


SHOWN_COMMANDS = [(name, command) for name in PAGES for command in shown_commands(name)]


@pytest.mark.parametrize(("name", "command"), SHOWN_COMMANDS)
def test_a_shown_command_exists(
    name: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The warehouse of the pages, which must exist.
    (tmp_path / "history").mkdir()
    monkeypatch.chdir(tmp_path)

    assert parse_command(command) is not None


def test_the_pages_show_commands() -> None:
    assert len(SHOWN_COMMANDS) > 40


@pytest.mark.parametrize(
    "command", ["dibs retyr emails", "dibs counts --jsno", "dibs list q --state sleeping"]
)
def test_a_command_with_a_mistake_is_found(command: str) -> None:
    with pytest.raises(click.UsageError):
        parse_command(command)


# -- The numbers in the table of bad input equal the rows that are tried -----------------------------


TABLES = {
    "queues, tasks, tickets, claims and `app.work`": CALLS,
    "the verbs of a storage": VERBS,
    "handlers, schedules and values": DECLARATIONS,
    "URLs and options": URLS,
}
#: Classes with fewer errors are counted as others.
LEAST = 4


def table_row(name: str, answers: Counter[str]) -> str:
    named = [f"{count} {answer}" for answer, count in answers.most_common() if count >= LEAST]
    others = sum(count for count in answers.values() if count < LEAST)
    return (
        f"| {name} | {answers.total()} | {', '.join([*named, *([f'{others} others'] if others else [])])} |"
    )


def test_the_table_counts_the_rows() -> None:
    page = (PROJECT / "docs/reference/errors.md").read_text("utf-8")
    expected = [
        table_row(name, Counter(f"`{row.error.__name__}`" for row in rows)) for name, rows in TABLES.items()
    ]
    expected.append(table_row("command lines", Counter(f"exit code {one.code}" for one in COMMANDS)))

    assert [] == [line for line in expected if line not in page]


# -- The contract page agrees with the code: transitions, verbs, events, settings and limits ---------


CONTRACT = (PROJECT / "docs/explanation/contract.md").read_text("utf-8")
BEGIN = "<!-- transitions: begin (printed by dibs.model.transition_table.markdown()) -->\n\n"
CONTRACT_END = "\n<!-- transitions: end -->"


def test_the_table_of_transitions_is_the_one_in_the_code() -> None:
    _, _, rest = CONTRACT.partition(BEGIN)
    table, _, _ = rest.partition(CONTRACT_END)

    assert transition_table.markdown() == table


def test_every_verb_of_the_protocol_is_explained() -> None:
    verbs = [name for name, member in vars(Storage).items() if callable(member) and not name.startswith("_")]

    assert [] == [verb for verb in verbs if f"`{verb}(" not in CONTRACT]


def test_every_event_and_setting_is_named() -> None:
    words = [*get_args(AttemptKind), *get_args(NoteKind), *SettingsPatch.__struct_fields__]

    assert [] == [word for word in words if word not in CONTRACT]


def test_the_limits_are_those_of_the_code() -> None:
    assert f"| payload | {LIMITS.payload >> 20} MiB |" in CONTRACT
    assert f"| attributes | {LIMITS.attributes >> 10} KiB |" in CONTRACT
    assert f"| id | {LIMITS.id} bytes |" in CONTRACT
    assert f"| name of a queue | {LIMITS.queue} bytes |" in CONTRACT
    assert f"| request_key, key | {LIMITS.request_key} bytes |" in CONTRACT
    assert f"| requests in a batch | {LIMITS.batch:,} |" in CONTRACT
    assert f"| depth of JSON | {LIMITS.depth} |" in CONTRACT


# -- Every fast path on the page has a test that exists ----------------------------------------------


FAST_PATHS = (PROJECT / "docs/explanation/fast-paths.md").read_text("utf-8")
ROWS = [row.split(" | ") for row in FAST_PATHS.splitlines() if row.startswith("| `")]


def test_every_row_names_a_test_that_exists() -> None:
    for code, _, _, named in ROWS:
        files = [PROJECT / name for name in re.findall(r"`(tests/\S+\.py)`", named)]
        functions = re.findall(r"`(test_\w+)`", named)
        searched = files or (PROJECT / "tests").rglob("test_*.py")
        text = "".join(file.read_text("utf-8") for file in searched)

        assert files or functions, code
        assert [] == [name for name in functions if f"def {name}(" not in text], code


def test_the_page_names_every_fast_path_of_lua() -> None:
    includes = (PROJECT / "src/dibs/storage/redis/lua/include").glob("fast_*.lua")

    assert [] == [file.name for file in includes if file.name not in FAST_PATHS]


# -- The page about upgrades names the layouts of the code -------------------------------------------


def test_the_page_names_the_layouts_of_the_code() -> None:
    page = (PROJECT / "docs/explanation/upgrades.md").read_text("utf-8")
    rows = re.findall(r"^\| (file|Redis|Postgres) \|.*?\| (\d+) \|", page, re.MULTILINE)
    assert {"file": FORMAT, "Redis": LAYOUT, "Postgres": migrations()[-1].number} == {
        storage: int(number) for storage, number in rows
    }
