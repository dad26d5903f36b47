"""`dibs show QUEUE ID --output`: what the runs of a job have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dibs.model.requests import Complete, Settlement
from dibs.storage.protocol import Storage
from tests.cli.shell import Shell, claim_one, in_storage


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    shell = Shell(tmp_path)
    shell.type("enqueue", "answers", "1", "--id", "a")
    return shell


async def write(storage: Storage, *chunks: bytes) -> None:
    fence = await claim_one(storage, "answers")
    await storage.report("answers", "a", fence, output=chunks)
    await storage.settle("answers", [Settlement(id="a", fence=fence, action=Complete())])


def test_each_chunk_is_a_line(shell: Shell) -> None:
    in_storage(shell, lambda storage: write(storage, b'v"half of it"', b'v{"rows":7}', b"v\xff"))

    shown = shell.type("show", "answers", "a", "--output", "--follow")

    assert 0 == shown.exit_code
    assert ["1  half of it", '1  {"rows":7}', "1  /w== (base64)"] == [
        line.split("Z  ")[1] for line in shown.stdout.splitlines()
    ]


def test_the_json_has_an_object_for_each_chunk(shell: Shell) -> None:
    in_storage(shell, lambda storage: write(storage, b'v"one"', b'v"two"'))

    lines = shell.type("show", "answers", "a", "--output", "--json").stdout.splitlines()

    assert ["one", "two"] == [json.loads(line)["value"]["value"] for line in lines]
    assert {"offset", "at", "attempt", "kind", "value"} == set(json.loads(lines[0]))


RECORD = {"time": "2026-11-30T16:00:00.123Z", "level": "ERROR", "logger": "orders", "message": "no\nroom"}


def test_a_log_record_is_a_line_with_its_time_and_level(shell: Shell) -> None:
    failed = {**RECORD, "exception": "Traceback\n  File x"}
    chunks = [b"l" + json.dumps(value).encode() for value in (failed, RECORD, "no record")]
    in_storage(shell, lambda storage: write(storage, *chunks))

    *lines, last = shell.type("show", "answers", "a", "--output").stdout.splitlines()
    records = shell.type("show", "answers", "a", "--output", "--json").stdout.splitlines()

    first = "2026-11-30T16:00:00.123Z  1  ERROR    orders: no"
    assert [first, "    room", "    Traceback", "      File x", first, "    room"] == lines
    assert last.endswith("1  no record")
    assert ("log", RECORD) == (json.loads(records[1])["kind"], json.loads(records[1])["value"]["value"])


def test_an_id_without_output_and_an_unknown_one(shell: Shell) -> None:
    shown = shell.type("show", "answers", "a", "--output")

    assert (0, "") == (shown.exit_code, shown.stdout)
    assert 1 == shell.type("show", "answers", "b", "--output").exit_code


@pytest.mark.parametrize("words", [("answers", "a", "--follow"), ("--output",), ("answers", "--output")])
def test_flags_that_fit_nothing_are_refused(shell: Shell, words: tuple[str, ...]) -> None:
    assert 2 == shell.type("show", *words).exit_code
