"""`dibs mcp`: its tools, called by the client of the official SDK, and the command as its own process."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from dibs import Dibs, PermanentError
from dibs.cli.json_output import event_fields, slot_fields
from dibs.cli.mcp_server import BEGIN, HIDDEN, LONGEST_VALUE, build_server

READING = {
    "count_jobs",
    "describe_storage",
    "explain_failure",
    "list_failures",
    "list_jobs",
    "read_events",
    "read_settings",
    "show_job",
}
WRITING = {"cancel_jobs", "pause_queue", "resume_queue", "retry_jobs", "run_now"}


async def charge(card: str) -> None:
    raise PermanentError(f"no such card: {card}")


@pytest.fixture
async def queue(any_app: Dibs) -> str:
    """Return the name of a queue with two failed jobs and a scheduled job."""
    name = f"charges-{os.urandom(6).hex()}"
    task = any_app.task(queue=name)(charge)
    for id in ("a", "b"):
        await task.options(id=id).enqueue("swordfish")
    await any_app.work([name], until="empty")
    await task.options(id="later", delay=3600).enqueue("swordfish")
    return name


async def call(app: Dibs, tool: str, *, write: bool = False, hide: bool = False, **arguments: Any) -> Any:
    """Return the answer of a tool. The server and its client run in this process."""
    async with Client(build_server(app.storage, write=write, hide=hide)) as client:
        result = await client.call_tool(tool, arguments)
    if result.is_error:
        [content] = result.content
        raise RuntimeError(getattr(content, "text", ""))
    assert isinstance(result.structured_content, Mapping)
    return result.structured_content


async def test_a_server_writes_only_if_it_was_started_with_write(any_app: Dibs, queue: str) -> None:
    async with Client(build_server(any_app.storage)) as client:
        reading = (await client.list_tools()).tools
        refused = await client.call_tool("pause_queue", {"queue": queue})
    async with Client(build_server(any_app.storage, write=True)) as client:
        all_tools = {tool.name for tool in (await client.list_tools()).tools}

    assert {tool.name for tool in reading} == READING
    assert all(tool.annotations is not None and tool.annotations.read_only_hint for tool in reading)
    assert refused.is_error
    assert all_tools == READING | WRITING


async def test_the_answers_are_those_of_the_command_line(any_app: Dibs, queue: str) -> None:
    [slot] = await any_app.storage.get(queue, ["a"])
    page = await any_app.storage.events(queue)
    events = [event_fields(queue, offset, event) for offset, event in page.events]

    shown = await call(any_app, "show_job", queue=queue, id="a")
    counts = await call(any_app, "count_jobs", queues=[queue])
    listed = await call(any_app, "list_jobs", queue=queue, state="failed")

    assert shown == slot_fields(queue, "a", slot) | {"exists": True}
    assert (1, 2) == (counts["queues"][queue]["scheduled"], counts["queues"][queue]["failed"])
    assert {"a", "b"} == {job["id"] for job in listed["jobs"]}
    assert events == (await call(any_app, "read_events", queue=queue))["events"]
    assert queue in (await call(any_app, "describe_storage"))["queues"]
    assert (await call(any_app, "read_settings", queue=queue))["paused"] is False


async def test_a_failure_is_explained_by_its_error_and_its_events(any_app: Dibs, queue: str) -> None:
    found = await call(any_app, "explain_failure", queue=queue, id="a")
    groups = await call(any_app, "list_failures", queue=queue)

    assert (True, "failed", 1) == (found["failed"], found["state"], found["attempts"])
    assert "no such card: swordfish" in found["error"]["message"]
    assert [("a", "failed")] == [(event["id"], event["kind"]) for event in found["events"]]
    assert found["events_complete"]
    assert (2, 2) == (groups["failed"], groups["read"])
    assert [2] == [group["jobs"] for group in groups["groups"]]
    assert (await call(any_app, "explain_failure", queue=queue, id="later"))["failed"] is False


async def test_hidden_values_appear_in_no_answer(any_app: Dibs, queue: str) -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("show_job", {"id": "a"}),
        ("list_jobs", {"state": "failed"}),
        ("list_jobs", {"state": "scheduled"}),
        ("read_events", {}),
        ("list_failures", {}),
        ("explain_failure", {"id": "a"}),
    ]
    for tool, arguments in calls:
        answer = repr(await call(any_app, tool, hide=True, queue=queue, **arguments))
        assert HIDDEN in answer
        assert "swordfish" not in answer


async def test_a_long_payload_is_shortened(any_app: Dibs) -> None:
    name = f"q-{os.urandom(6).hex()}"
    await any_app.queue(name).enqueue({"text": "x" * LONGEST_VALUE}, id="a")

    payload = (await call(any_app, "show_job", queue=name, id="a"))["current"]["payload"]

    assert payload["shortened"]
    assert BEGIN == len(payload["begin"])
    assert payload["bytes"] > LONGEST_VALUE


async def test_each_writing_tool_changes_the_storage(any_app: Dibs, queue: str) -> None:
    storage = any_app.storage

    assert await call(any_app, "retry_jobs", write=True, queue=queue, ids=["a", "no"]) == {
        "queue": queue,
        "answers": {"a": "queued", "no": "not_found"},
    }
    assert (
        "amended" == (await call(any_app, "run_now", write=True, queue=queue, id="later"))["answers"]["later"]
    )
    counts = (await storage.counts([queue]))[queue]
    assert (2, 0, 1) == (counts.waiting, counts.scheduled, counts.failed)

    cancelled = await call(any_app, "cancel_jobs", write=True, queue=queue, ids=["a"])
    assert {"a": "cancelled"} == cancelled["answers"]
    assert (await call(any_app, "pause_queue", write=True, queue=queue))["paused"]
    assert [True] == [info.settings.paused for info in await storage.queues() if info.name == queue]
    assert not (await call(any_app, "resume_queue", write=True, queue=queue))["paused"]


async def test_an_error_of_the_storage_reaches_the_caller_with_its_text(any_app: Dibs) -> None:
    with pytest.raises(RuntimeError, match=r"Refused: .*queue"):
        await call(any_app, "show_job", queue="q\0", id="a")


@pytest.mark.long
async def test_the_command_serves_a_storage_on_stdin_and_stdout(any_url: str) -> None:
    if any_url.startswith("memory"):
        pytest.skip("a storage in memory belongs to one process")
    async with Dibs(any_url) as app:
        await app.queue("mail").enqueue({"to": "ada"}, id="a")
    arguments = ["-m", "dibs", "mcp", "--url", any_url]
    server = StdioServerParameters(command=sys.executable, args=arguments)

    async with Client(stdio_client(server)) as client:
        result = await client.call_tool("show_job", {"queue": "mail", "id": "a"})

    assert result.structured_content is not None
    assert {"to": "ada"} == result.structured_content["current"]["payload"]["value"]


def test_the_reference_lists_the_tools() -> None:
    page = Path("docs/reference/cli.md").read_text("utf-8").partition("<!-- mcp tools -->")[2]
    table = page.partition("\n\n|")[2].partition("\n\n")[0]

    assert READING | WRITING == set(
        re.findall(r"`(\w+)`(?=[,| ])", re.sub(r"\|[^|]*\|$", "|", table, flags=re.MULTILINE))
    )
