"""The examples in the docstrings of the public handles run, each on an app of its own in memory."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from inspect import CO_COROUTINE, cleandoc
from types import ModuleType
from typing import Any

import pytest

import dibs
from dibs import Dibs
from dibs.testing import Rehearsal, using

HANDLES = (
    *(dibs.Dibs, dibs.Queue, dibs.Task, dibs.Ticket, dibs.Claim, dibs.Schedules, dibs.CurrentJob),
    *(dibs.Ending, dibs.Flow, dibs.Chain, dibs.StoredFlow, dibs.StoredBatch, Rehearsal),
)
#: Calls that the example of another call shows, that users do not call, or whose example ends the run.
WITHOUT = {
    *("Dibs.close", "Queue.resume", "CurrentJob.request_cancel", "CurrentJob.add_waits"),
    "CurrentJob.add_record",
    *("CurrentJob.wait_for", "Flow.plan", "Flow.build_request", "StoredFlow.ticket", "StoredBatch.ticket"),
}
#: The first code of a docstring: an indented block, the text `Example: ...`, or a form like `async for ...:`.
EXAMPLE = re.compile(r"\n\n((?:    .*\n?|\n(?=    ))+)|Example: `([^`]+)`|`((?:await|async for|@)[^`]+)`")
#: The functions and names that the examples use.
NAMES = """
from contextlib import asynccontextmanager, nullcontext
from dibs import *
from redis import ConnectionPool, Redis

async def send(address: str, subject: str = "Hello") -> str:
    return f"{subject}, {address}"

def resize(image: str) -> str:
    return f"small {image}"

def echo(data: dict[str, int]) -> dict[str, int]:
    return data

async def charge(order: str, idempotency_key: str) -> str:
    return order

def report(tenant: str) -> str:
    return tenant

async def inside() -> None:
    await in_handler(job=current_job())

async def after_inside(ending: Ending) -> None:
    await in_handler(ending=ending)

@asynccontextmanager
async def open_pool():
    yield "pool"
"""


def public_calls() -> Iterator[tuple[str, str]]:
    """Yield the name of each public method of the handles, and its docstring."""
    for handle in HANDLES:
        for name, member in inspect.getmembers(handle, inspect.isfunction):
            if not name.startswith("_") and f"{handle.__name__}.{name}" not in WITHOUT:
                yield f"{handle.__name__}.{name}", cleandoc(member.__doc__ or "")


def code_of(text: str) -> tuple[str, bool]:
    """Return the example of a docstring, and whether it can run: a form such as `async for ...:` cannot."""
    found = EXAMPLE.search(text)
    if found is None:
        return "", False
    return cleandoc(f"\n{found[1]}") if found[1] else found[2] or found[3], found[3] is None


EXAMPLES = {name: code_of(text) for name, text in public_calls()}


def test_each_public_call_has_an_example() -> None:
    assert [] == [name for name, (code, _) in EXAMPLES.items() if not code]


@pytest.mark.parametrize("name", [name for name, (_, runs) in EXAMPLES.items() if runs])
async def test_the_example_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("docstring_examples")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(NAMES, module.__dict__)
    code, handle = EXAMPLES[name][0], name.partition(".")[0]
    names = declared(module.__dict__)
    if handle == "Rehearsal":
        async with using(names["app"]) as names["jobs"]:
            await names["send"].enqueue("ada@example.org")
            await run(code, names)
        return
    async with asyncio.timeout(20), working(names):
        if handle in ("CurrentJob", "Ending"):
            await run_in_handler(code, names, handle)
        else:
            await run(code, names)


def declared(names: dict[str, Any]) -> dict[str, Any]:
    """Add an app with tasks to the names."""
    names["app"] = app = Dibs("memory:", flows=True)
    names["send"] = app.task(queue="send")(names["send"])
    names["resize"] = app.task(names["resize"])
    names["report"] = app.task(names["report"])
    names["inside"] = app.task(names["inside"])
    names["inside"].after(names["after_inside"])
    app.queue("echo").handler(names["echo"])
    names["queue"] = app.queue("mails")
    return names


@asynccontextmanager
async def working(names: dict[str, Any]) -> AsyncIterator[None]:
    """Run a worker of the app, and add a ticket, a claim, a flow and a batch to the names."""
    app, queue = names["app"], names["queue"]
    async with app:
        work = asyncio.create_task(app.work(poll=0.01, handle_signals=False))
        try:
            names["ticket"] = await names["send"].enqueue("ada@example.org")
            names["flow"] = app.flow()
            await queue.enqueue({"to": "ada@example.org"})
            async with app.batch("mailing-7"), queue.receive() as claims:
                names["claim"] = await anext(aiter(claims))
                yield
        finally:
            app.stop(0)
            await work


async def run(code: str, names: dict[str, Any]) -> None:
    compiled = compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    if compiled.co_flags & CO_COROUTINE:
        await eval(compiled, names)
    else:
        exec(compiled, names)


async def run_in_handler(code: str, names: dict[str, Any], handle: str) -> None:
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def in_handler(**variables: Any) -> None:
        if ({"job": "CurrentJob", "ending": "Ending"}[next(iter(variables))]) == handle:
            try:
                await run(code, names | variables)
                ended.set_result(None)
            except Exception as error:  # noqa: BLE001 - the test raises it
                ended.set_exception(error)

    names["in_handler"] = in_handler
    await names["inside"].enqueue()
    await ended
