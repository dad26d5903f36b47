"""`JobTools`: tools of an MCP server whose calls run as jobs, called by the client of the official SDK."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.server.auth.middleware.auth_context import auth_context_var
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.mcpserver import MCPServer
from mcp_types import CallToolResult, Request, RequestParams, Result
from pydantic import ConfigDict

from dibs import ConfigurationError, Dibs, JobCancelled, PermanentError, Task, current_job
from dibs.mcp import IDENTIFIER, JobTools
from tests.storage_urls import new_url

MISSING_CAPABILITY = -32021
INVALID_PARAMS = -32602


class AnyResult(Result):
    model_config = ConfigDict(extra="allow")


class CreatedTask(AnyResult):
    result_type: Literal["task"] = "task"
    task_id: str


class Params(RequestParams):
    task_id: str
    input_responses: dict[str, Any] | None = None


class TaskRequest(Request[Params, str]):
    name_param = "taskId"


async def _unresolved(created: CreatedTask, context: ClaimContext) -> CallToolResult:
    raise AssertionError(f"the tests ask for {created.task_id} themselves")


class TaskClient(ClientExtension):
    """What makes a client of the SDK accept tasks."""

    identifier = IDENTIFIER

    def claims(self) -> list[ResultClaim[CreatedTask]]:
        return [ResultClaim(result_type="task", model=CreatedTask, resolve=_unresolved)]


async def start(client: Client, tool: str, **arguments: Any) -> str:
    """Call a tool and return the id of its task."""
    created = await client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(created, CreatedTask), created
    return created.task_id


async def send(client: Client, method: str, task_id: str, **answers: Any) -> dict[str, Any]:
    params = Params(task_id=task_id, input_responses=answers.get("answers"))
    result = await client.session.send_request(TaskRequest(method=method, params=params), AnyResult)
    fields: dict[str, Any] = result.model_dump(by_alias=True, exclude_none=True)
    return fields


async def until(client: Client, task_id: str, *states: str, has: str = "", lacks: str = "") -> dict[str, Any]:
    """Ask for a task until it has one of these states, a field, and no input request with a key."""
    async with asyncio.timeout(20):
        while True:
            found = await send(client, "tasks/get", task_id)
            if (
                found["status"] in states
                and (not has or has in found)
                and lacks not in found.get("inputRequests", ())
            ):
                return found
            await asyncio.sleep(0.05)


def accept(**content: Any) -> dict[str, Any]:
    return {"action": "accept", "content": content}


@dataclass
class Approval:
    by: str
    amount: int = 0


async def summarize(text: str, words: int = 2) -> dict[str, str]:
    """Return the first words of a text."""
    await current_job().write(f"reading {len(text)} letters")
    return {"summary": " ".join(text.split()[:words])}


async def ask(number: int) -> str:
    """Pay after an approval."""
    job = current_job()
    await job.write(f"pay order {number}?")
    approval = await job.wait_for("approved", Approval | None)
    return "declined" if approval is None else f"{approval.by} pays {approval.amount}"


async def ask_twice() -> list[bool]:
    job = current_job()
    return [await job.wait_for("sure", bool), await job.wait_for("sure", bool)]


async def refuse(card: str) -> None:
    raise PermanentError(f"no such card: {card}")


async def crash(password: str) -> None:
    raise ValueError(f"the password is {password}")


async def sleep() -> None:
    await current_job().write("asleep")
    await asyncio.sleep(60)


Serve = Callable[..., Any]


@pytest.fixture
def serve(any_app: Dibs) -> Serve:
    """Return a context: a worker, and a client of a server whose tools are these functions."""
    queue = f"tools-{os.urandom(6).hex()}"
    tasks: dict[Any, Task[..., Any]] = {}

    @asynccontextmanager
    async def context(
        *functions: Any, inputs: Any = None, knows_tasks: bool = True, works: bool = True
    ) -> AsyncIterator[Client]:
        for function in functions:
            if function not in tasks:
                name = f"{queue}-{function.__name__}"
                tasks[function] = any_app.task(queue=name, max_retries=0)(function)
        tools = JobTools([tasks[function] for function in functions], inputs=inputs, poll=0.25)
        server = MCPServer("shop", extensions=[tools], log_level="ERROR")
        worker = (
            asyncio.create_task(any_app.work([tasks[one].queue.name for one in functions])) if works else None
        )
        async with Client(server, extensions=[TaskClient()] if knows_tasks else []) as client:
            yield client
        if worker is not None:
            worker.cancel()
            await asyncio.wait([worker])

    return context


async def test_a_tool_has_the_name_signature_and_docstring_of_its_function(serve: Serve) -> None:
    async with serve(summarize, works=False) as client:
        [tool] = (await client.list_tools()).tools
        refused = await client.session.call_tool("summarize", {"words": "many"}, allow_claimed=True)

    assert ("summarize", "Return the first words of a text.") == (tool.name, tool.description)
    assert {"text", "words"} == tool.input_schema["properties"].keys()
    assert ["text"] == tool.input_schema["required"]
    assert refused.is_error


async def test_a_call_is_a_task_whose_result_is_fetched_later(serve: Serve) -> None:
    async with serve(summarize, works=False) as client:
        task_id = await start(client, "summarize", text="one two three")
        begun = await send(client, "tasks/get", task_id)
    async with serve(summarize) as client:
        ended = await until(client, task_id, "completed")

    assert "working" == begun["status"]
    assert "ttlMs" not in begun
    assert 250 == begun["pollIntervalMs"]
    assert {"summary": "one two"} == ended["result"]["structuredContent"]
    assert not ended["result"]["isError"]
    assert "reading 13 letters" == ended["statusMessage"]
    assert 86_400_000 <= ended["ttlMs"] < 86_460_000


async def test_an_error_of_a_tool_is_a_result(serve: Serve) -> None:
    async with serve(refuse, crash) as client:
        refused = await until(client, await start(client, "refuse", card="x"), "completed")
        crashed = await until(client, await start(client, "crash", password="swordfish"), "completed")

    assert refused["result"]["isError"]
    assert "no such card: x" == refused["result"]["content"][0]["text"]
    assert crashed["result"]["isError"]
    assert "the job failed with ValueError" == crashed["result"]["content"][0]["text"]


async def test_a_cancelled_task_stops_its_job(serve: Serve) -> None:
    async with serve(sleep) as client:
        task_id = await start(client, "sleep")
        await until(client, task_id, "working", has="statusMessage")
        await send(client, "tasks/cancel", task_id)
        ended = await until(client, task_id, "cancelled")

    assert "asleep" == ended["statusMessage"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [(accept(by="ada", amount=3), "ada pays 3"), ({"action": "decline"}, "declined")],
    ids=["accept", "decline"],
)
async def test_a_job_that_waits_for_a_signal_asks_the_client(
    serve: Serve, answer: Any, expected: str
) -> None:
    async with serve(ask, inputs={"approved": Approval | None}) as client:
        task_id = await start(client, "ask", number=7)
        asked = await until(client, task_id, "input_required")
        [(key, request)] = asked["inputRequests"].items()
        await send(client, "tasks/update", task_id, answers={key: answer, "approved.9": accept(by="eve")})
        ended = await until(client, task_id, "completed")

    form = request["params"]["requestedSchema"]
    assert "elicitation/create" == request["method"]
    assert "pay order 7?" == request["params"]["message"]
    assert {"by": {"type": "string"}, "amount": {"type": "integer", "default": 0}} == form["properties"]
    assert ["by"] == form["required"]
    assert {"result": expected} == ended["result"]["structuredContent"]


async def test_each_wait_has_its_own_key_and_a_repeated_answer_counts_once(serve: Serve) -> None:
    async with serve(ask_twice, inputs={"sure": bool}) as client:
        task_id = await start(client, "ask_twice")
        [first] = (await until(client, task_id, "input_required"))["inputRequests"]
        for _ in range(3):
            await send(client, "tasks/update", task_id, answers={first: accept(value=True)})
        [second] = (await until(client, task_id, "input_required", lacks=first))["inputRequests"]
        await send(client, "tasks/update", task_id, answers={first: accept(value=True)})
        await send(client, "tasks/update", task_id, answers={second: accept(value=False)})
        ended = await until(client, task_id, "completed")

    assert {"result": [True, False]} == ended["result"]["structuredContent"]


async def test_an_answer_that_does_not_fit_is_refused_and_the_job_waits_on(serve: Serve) -> None:
    async with serve(ask, inputs={"approved": Approval}) as client:
        task_id = await start(client, "ask", number=7)
        [key] = (await until(client, task_id, "input_required"))["inputRequests"]
        with pytest.raises(MCPError) as refused:
            await send(client, "tasks/update", task_id, answers={key: accept(by=5)})
        still = await send(client, "tasks/get", task_id)

    assert INVALID_PARAMS == refused.value.error.code
    assert "approved" in refused.value.error.message
    assert [key] == [*still["inputRequests"]]


async def test_a_client_without_the_extension_waits_and_gets_progress(serve: Serve) -> None:
    seen: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(message)

    async with serve(summarize, refuse, knows_tasks=False) as client:
        found = await client.call_tool("summarize", {"text": "one two three"}, progress_callback=note)
        refused = await client.call_tool("refuse", {"card": "x"})
        with pytest.raises(MCPError) as missing:
            await send(client, "tasks/get", "summarize.1")

    assert {"summary": "one two"} == found.structured_content
    assert ["reading 13 letters"] == seen
    assert refused.is_error
    assert "no such card: x" in refused.content[0].text
    assert MISSING_CAPABILITY == missing.value.error.code


async def test_a_client_that_stops_waiting_cancels_the_job(any_app: Dibs, serve: Serve) -> None:
    started = asyncio.Event()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        started.set()

    async with serve(sleep, knows_tasks=False) as client:
        call = asyncio.create_task(client.call_tool("sleep", {}, progress_callback=note))
        await asyncio.wait_for(started.wait(), 20)
        call.cancel()
        [queue] = [info.name for info in await any_app.storage.queues() if info.name.endswith("-sleep")]
        [status] = [status async for status in any_app.queue(queue).list("active")]
        ended = any_app.queue(queue).ticket(status.id, status.revision)
        with pytest.raises(JobCancelled):
            await ended.result(wait=20)


async def test_tools_that_ask_need_a_client_with_the_extension(serve: Serve) -> None:
    async with serve(ask, inputs={"approved": Approval}, knows_tasks=False) as client:
        with pytest.raises(MCPError) as missing:
            await client.call_tool("ask", {"number": 7})

    assert MISSING_CAPABILITY == missing.value.error.code


@pytest.mark.parametrize("task_id", ["", "summarize", "summarize.unknown", "other.1"])
async def test_an_unknown_task_is_invalid(serve: Serve, task_id: str) -> None:
    async with serve(summarize, works=False) as client:
        for method in ("tasks/get", "tasks/update", "tasks/cancel"):
            with pytest.raises(MCPError) as unknown:
                await send(client, method, task_id, answers={})
            assert INVALID_PARAMS == unknown.value.error.code


async def test_a_task_is_hidden_from_other_principals(any_app: Dibs) -> None:
    task = any_app.task(queue=f"tools-{os.urandom(6).hex()}")(summarize)
    server = MCPServer("shop", extensions=[JobTools([task])])

    @asynccontextmanager
    async def client_of(subject: str) -> AsyncIterator[Client]:
        token = AccessToken(token="t", client_id="desk", scopes=[], subject=subject)
        reset = auth_context_var.set(AuthenticatedUser(token))
        try:
            async with Client(server, extensions=[TaskClient()]) as client:
                yield client
        finally:
            auth_context_var.reset(reset)

    async with client_of("ada") as ada:
        task_id = await start(ada, "summarize", text="secret")
        own = await send(ada, "tasks/get", task_id)
    async with client_of("eve") as eve:
        with pytest.raises(MCPError) as hidden:
            await send(eve, "tasks/cancel", task_id)

    assert "working" == own["status"]
    assert INVALID_PARAMS == hidden.value.error.code


@dataclass
class Deep:
    parts: list[str]


@pytest.mark.parametrize("type", [Deep, list[int], dict[str, int], str | int])
def test_an_input_that_no_form_has_is_refused(app: Dibs, type: Any) -> None:
    with pytest.raises(ConfigurationError, match="'approved'"):
        JobTools([app.task(queue="q")(summarize)], inputs={"approved": type})


def test_results_that_nobody_could_fetch_are_refused(app: Dibs) -> None:
    with pytest.raises(ConfigurationError, match="keep is 0"):
        JobTools([app.task(queue="q")(summarize)], keep=0)


def test_two_tools_of_one_name_are_refused(app: Dibs) -> None:
    tasks = [app.task(queue=queue)(summarize) for queue in ("a", "b")]

    with pytest.raises(ConfigurationError, match="'summarize'"):
        JobTools(tasks)


APP = """
from dataclasses import dataclass
from dibs import Dibs, current_job
from dibs.mcp import JobTools
from mcp.server.mcpserver import MCPServer

app = Dibs({url!r})

@app.task(queue="orders")
async def pay(number: int) -> str:
    return f"{{number}} paid by {{await current_job().wait_for('approved', str)}}"

if __name__ == "__main__":
    MCPServer("shop", extensions=[JobTools([pay], inputs={{"approved": str}})]).run()
"""


@pytest.mark.long
@pytest.mark.parametrize("kind", ["file", "postgresql"])
async def test_a_task_outlives_each_process(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "shop.py").write_text(APP.format(url=new_url(kind, request)))
    server = StdioServerParameters(command=sys.executable, args=["shop.py"], cwd=tmp_path)

    def start_worker() -> subprocess.Popen[bytes]:
        words = [sys.executable, "-m", "dibs", "worker", "shop:app", "--processes", "1", "--lease", "2"]
        return subprocess.Popen(words, cwd=tmp_path)

    async with Client(stdio_client(server), extensions=[TaskClient()]) as client:
        task_id = await start(client, "pay", number=7)
    worker = start_worker()
    async with Client(stdio_client(server), extensions=[TaskClient()]) as client:
        [key] = (await until(client, task_id, "input_required"))["inputRequests"]
    worker.kill()
    worker.wait()
    async with Client(stdio_client(server), extensions=[TaskClient()]) as client:
        await send(client, "tasks/update", task_id, answers={key: accept(value="ada")})
    worker = start_worker()
    try:
        async with Client(stdio_client(server), extensions=[TaskClient()]) as client:
            ended = await until(client, task_id, "completed")
    finally:
        worker.terminate()
        worker.wait()

    assert {"result": "7 paid by ada"} == ended["result"]["structuredContent"]
