"""Compares the JSON of the commands with the examples in docs/reference/cli.md."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dibs.model.job import Error, JobData, NewJob, OutcomeRetention
from dibs.model.overrides import Overrides
from dibs.model.requests import EnqueueRequest, Fail, RetryLater, SettingsPatch, Settlement
from dibs.storage.protocol import Storage
from tests.cli.shell import Shell, claim_one, in_storage
from tests.source import PROJECT

PAGE = (PROJECT / "docs/reference/cli.md").read_text("utf-8")
SHAPES = {
    name: json.loads(text)
    for name, text in re.findall(r"<!-- shape: (\S+) -->\n```json\n(.*?)```", PAGE, re.DOTALL)
}

# Objects with any keys: those of the user, or only the settings that were made.
FREE = {"attributes", "overrides", "retention"}
# Fields with any value of the user.
ANY = {"value", "progress"}


def differences(shown: Any, printed: Any, path: str = "") -> list[str]:
    """Return the differences of two JSON values in keys and types. Null matches every type."""
    if shown is None or printed is None or path.rpartition(".")[2] in ANY:
        return []
    if isinstance(shown, dict) and isinstance(printed, dict):
        return differences_in_keys(shown, printed, path)
    if isinstance(shown, list) and isinstance(printed, list):
        return [
            found for item in printed for found in differences(shown[0] if shown else None, item, f"{path}[]")
        ]
    number = {int, float}
    if type(shown) is type(printed) or {type(shown), type(printed)} == number:
        return []
    return [f"{path}: the page shows {shown!r}, printed was {printed!r}"]


def differences_in_keys(shown: dict[str, Any], printed: dict[str, Any], path: str) -> list[str]:
    if path.rpartition(".")[2] in FREE:
        return []
    if path == ".queues" and isinstance(shown, dict):
        example = next(iter(shown.values()))
        return [found for item in printed.values() for found in differences(example, item, f"{path}.*")]
    found = [f"{path}.{key}: only on the page" for key in shown.keys() - printed.keys()]
    found += [f"{path}.{key}: only printed" for key in printed.keys() - shown.keys()]
    for key in shown.keys() & printed.keys():
        found += differences(shown[key], printed[key], f"{path}.{key}")
    return found


async def everything_at_once(storage: Storage) -> None:
    """Create a job that is active+blocked, has an outcome and was retried, and a second job that failed."""
    data = JobData(
        payload=b'{"to": "x"}',
        attributes={"tries": b"3"},
        key="ada",
        overrides=Overrides(timeout=1000),
        retention=OutcomeRetention(completed=None),
    )
    await storage.configure("emails", SettingsPatch(fail_handler=True))
    boom = Error(type="OSError", message="no route", cause=Error(type="ValueError"))
    for id in ("w", "f"):
        await storage.enqueue("emails", [EnqueueRequest(job=NewJob(id=id, data=data))])
        fence = await claim_one(storage, "emails")
        await storage.settle("emails", [Settlement(id=id, fence=fence, action=Fail(error=boom))])
    await storage.enqueue("emails", [EnqueueRequest(job=NewJob(id="w", data=data))])
    fence = await claim_one(storage, "emails")
    await storage.settle("emails", [Settlement(id="w", fence=fence, action=RetryLater(error=boom))])
    await claim_one(storage, "emails")
    await storage.enqueue("emails", [EnqueueRequest(job=NewJob(id="w"))])


@pytest.fixture
def full(shell: Shell) -> Shell:
    in_storage(shell, everything_at_once)
    return shell


COMMANDS = {
    "show": ("show", "emails", "w"),
    "show-place": ("show",),
    "list": ("list", "emails", "--state", "active"),
    "counts": ("counts",),
    "cancel": ("cancel", "emails", "w"),
    "enqueue": ("enqueue", "emails", "{}"),
    "pause": ("pause", "emails"),
    "prune": ("prune",),
    "migrate": ("migrate",),
    "failures": ("failures",),
    "workers": ("workers",),
    "configure": ("configure", "emails", "--retention", "failed=30d", "--rate", "5/s"),
    "purge": ("purge", "emails", "--yes"),
}


@pytest.mark.parametrize(("name", "words"), COMMANDS.items(), ids=COMMANDS)
def test_the_page_shows_the_printed_json(full: Shell, name: str, words: tuple[str, ...]) -> None:
    assert [] == differences(SHAPES[name], full.json(*words))


@pytest.mark.parametrize(("id", "command"), [("w", "amend"), ("f", "retry")])
def test_amend_and_retry_print_the_json_of_cancel(full: Shell, id: str, command: str) -> None:
    words = ["--attribute", "a=1"] if command == "amend" else []

    assert [] == differences(SHAPES["cancel"], full.json(command, "emails", id, *words))


def test_list_prints_jobs_like_show(full: Shell) -> None:
    for state in ("active", "blocked", "failed"):
        for job in full.json("list", "emails", "--state", state)["jobs"]:
            assert [] == differences(SHAPES["show"], job)


def test_events_prints_the_documented_json(full: Shell) -> None:
    result = full.type("events", "emails", "--json")
    events = [json.loads(line) for line in result.stdout.splitlines()]

    assert ["failed", "failed", "retried"] == [event["kind"] for event in events]
    assert [] == [found for event in events for found in differences(SHAPES["events"], event)]


def test_the_origin_of_a_fail_job_has_the_documented_fields(full: Shell) -> None:
    jobs = full.json("list", "emails!fail")["jobs"]
    said = re.search(r"`origin` is the job that failed: (.*?)\. `overrides`", PAGE, re.DOTALL)

    assert said is not None
    assert set(re.findall(r"`(\w+)`", said[1])) == set(jobs[0]["current"]["origin"])


def test_differences_are_found() -> None:
    shown = {"a": 1, "b": {"c": "x"}, "d": [{"e": 1}]}

    assert [".a: only on the page", ".z: only printed"] == differences(shown, {**without(shown, "a"), "z": 1})
    assert [".b.c: the page shows 'x', printed was 2"] == differences(shown, {**shown, "b": {"c": 2}})
    assert [".d[].e: the page shows 1, printed was '1'"] == differences(shown, {**shown, "d": [{"e": "1"}]})


def without(shown: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in shown.items() if name != key}
