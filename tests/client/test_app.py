"""The app: its declarations, its URL, its imports, its worker."""

from __future__ import annotations

import inspect
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import dibs
from dibs import (
    BadHandler,
    CallSettings,
    ConfigurationError,
    Dibs,
    HandlerSettings,
    JobSettings,
    MessagePackSerde,
    NotRunning,
    QueueSettings,
    TaskSettings,
    WorkReport,
)
from dibs.client.connection.storage_handle import StorageHandle
from dibs.worker.work_plan import default_name
from tests.client import handlers


async def pools() -> AsyncIterator[str]:
    yield "a pool"


async def other() -> AsyncIterator[str]:
    yield "another"


async def test_a_lifespan_is_entered_as_a_context_manager(app: Dibs) -> None:
    assert app.lifespan(pools) is pools
    entered = app.lifespan_function
    assert entered is not None

    async with entered() as resources:
        assert resources == "a pool"
    with pytest.raises(BadHandler):
        app.lifespan(other)


def test_a_queue_has_one_serde(app: Dibs) -> None:
    packed = MessagePackSerde()
    app.queue("q", serde=packed)
    app.queue("q")
    app.queue("q", serde=packed)

    with pytest.raises(ConfigurationError, match="messagepack"):
        app.queue("q", serde=MessagePackSerde())


def test_a_tasks_queue_can_be_had_by_name(app: Dibs) -> None:
    task = app.task(queue="q")(handlers.thumbnail)

    assert app.queue("q") is task.queue


@pytest.mark.parametrize("url", ["redis://me:secret@h/0?x=secret", "memory:", None])
def test_an_app_shows_where_it_is_but_no_secret(url: str | None) -> None:
    assert "secret" not in repr(Dibs(url))
    assert repr(Dibs(url)).startswith("<Dibs of ")


def test_a_closed_app_has_no_storage() -> None:
    with pytest.raises(NotRunning):
        _ = Dibs("memory:").storage


async def test_work_returns_a_report(app: Dibs) -> None:
    task = app.task(queue="q")(handlers.refresh)
    await task.enqueue(3)

    report = await app.work(until="empty", lease=10, heartbeat=2, poll=0.1)

    assert isinstance(report, WorkReport)
    assert (report.queue("q").completed, report.queue("q").running, report.total("claimed")) == (1, 0, 1)
    with pytest.raises(ConfigurationError, match="heartbeat"):
        await app.work(lease=1, heartbeat=2)


HEAVY = ["typer", "click", "rich", "watchdog", "filelock", "redis", "psycopg", "cronsim", "zoneinfo",
         "hashlib", "pathlib", "urllib", "tomllib", "multiprocessing", "dibs.worker", "dibs.model.cron",
         "dibs.storage.file", "dibs.storage.memory", "dibs.client.sync.app"]  # fmt: skip


def test_import_dibs_brings_nothing_heavy() -> None:
    """No driver, no command line, no worker, and of the standard library little but asyncio."""
    script = f"import sys, dibs; print([name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout.strip() == "[]"


def test_every_public_name_is_there_and_listed() -> None:
    import dibs

    names: Any = dibs.__all__
    assert sorted(names) == names
    assert all(hasattr(dibs, name) for name in names)
    assert (Path(dibs.__file__).parent / "py.typed").exists(), "type checkers read the types of the package"


async def test_the_queues_of_a_storage_are_named(any_url: str) -> None:
    async with Dibs(any_url) as app:
        await app.queue("b").enqueue(1)
        await app.queue("a").configure(max_active=2)

        queues = await app.queues()

        assert sorted(queue.name for queue in queues) == ["a", "b"]
        assert [await queue.get("x") for queue in queues] == [None, None]


async def test_a_worker_has_the_name_that_it_is_given(any_url: str) -> None:
    async with Dibs(any_url) as app:
        queue = app.queue("q")
        queue.handler(handlers.take)
        for id, name in (("a", "pod-7"), ("b", None)):
            await queue.enqueue(1, id=id)
            await app.work(until="empty", name=name)

        named, unnamed = await queue.get("a"), await queue.get("b")
        assert named is not None
        assert unnamed is not None
        assert named.holder == "pod-7"
        assert unnamed.holder.startswith(f"{socket.gethostname()}:{os.getpid()}:")
        assert default_name() != default_name()


# -- `help()` and `repr()` of the handles: each option is explained, and no password is shown --------


APP = Dibs("redis://me:secret@host:6379/0?option=secret")
TASK = APP.task(queue="thumbs")(handlers.thumbnail)

#: Name of the case -> a function, and the settings that its docstring must explain with its parameters.
DOCUMENTED: dict[str, tuple[Any, Any]] = {
    "task": (Dibs.task, [*TaskSettings.__annotations__, "queue", "serde"]),
    "work": (Dibs.work, []),
    "options": (dibs.Task.options, CallSettings.__annotations__),
    "enqueue": (dibs.Queue.enqueue, JobSettings.__annotations__),
    "configure": (dibs.Queue.configure, QueueSettings.__annotations__),
    "receive": (dibs.Queue.receive, []),
    "amend": (dibs.Queue.amend, []),
    "events": (dibs.Queue.events, []),
    "blocking options": (dibs.BlockingTask.options, CallSettings.__annotations__),
    "blocking enqueue": (dibs.BlockingQueue.enqueue, JobSettings.__annotations__),
    "blocking work": (dibs.BlockingDibs.work, []),
}


def parameters(function: Any) -> set[str]:
    named = (
        one for one in inspect.signature(function).parameters.values() if one.kind is not one.VAR_KEYWORD
    )
    return {one.name for one in named} - {"self", "function", "id", "data"}


@pytest.mark.parametrize(("function", "settings"), DOCUMENTED.values(), ids=DOCUMENTED)
def test_help_explains_every_option(function: Any, settings: Any) -> None:
    explained = set(re.findall(r"`(\w+)`", function.__doc__))

    assert {*settings, *parameters(function)} - explained == set()


@pytest.mark.parametrize(
    "settings", [JobSettings, CallSettings, HandlerSettings, TaskSettings, QueueSettings]
)
def test_editors_show_a_text_for_every_setting(settings: Any) -> None:
    """Each key has a docstring below it, because editors look for the text there."""
    source = inspect.getsource(settings)

    assert [] == [
        name
        for name in settings.__annotations__
        if re.search(rf"^    {name}: .*$", source, re.MULTILINE)
        and not re.search(rf'^    {name}: .*\n    """', source, re.MULTILINE)
    ]


def public_members(kind: Any) -> dict[str, Any]:
    return {name: one for name, one in vars(kind).items() if callable(one) and not name.startswith("_")}


@pytest.mark.parametrize("name", [name for name in dibs.__all__ if name.startswith("Blocking")])
def test_a_blocking_method_has_the_text_of_its_async_method(name: str) -> None:
    blocking, source = getattr(dibs, name), getattr(dibs, name.removeprefix("Blocking"))

    for method, one in public_members(blocking).items():
        text = inspect.getdoc(getattr(source, method))
        assert text is not None
        assert inspect.getdoc(one) == text.replace("async with", "with").replace("async for", "for").replace(
            "await ", ""
        )


#: Members without a blocking form: they declare something, are used by the worker, or return the twin.
ASYNC_ONLY = {
    *("task", "bulk_task", "handler", "on_failure", "after", "lifespan", "lifespan_function", "function"),
    *("middleware", "override_storage", "using", "from_redis", "from_pool"),
    *("handlers", "storage", "lease_ms", "renewal_ms", "mark_lost", "sync"),
    *("add_next", "plan", "build_request"),
}


@pytest.mark.parametrize("name", [name for name in dibs.__all__ if name.startswith("Blocking")])
def test_a_blocking_handle_has_the_members_of_its_async_handle(name: str) -> None:
    blocking, source = getattr(dibs, name), getattr(dibs, name.removeprefix("Blocking"))
    sources = "".join(inspect.getsource(one) for one in source.__mro__ if one.__module__.startswith("dibs"))
    attributes = re.findall(r"^        self\.(\w+): ", sources, re.MULTILINE)
    members = {one for one in {*dir(source), *attributes} - ASYNC_ONLY if not one.startswith("_")}

    assert members == {one for one in dir(blocking) if not one.startswith("_")}


HANDLES = {
    "app": (APP, "<Dibs of redis://host:6379/0>"),
    "queue": (APP.queue("mail"), "<Queue 'mail' of redis://host:6379/0>"),
    "task": (TASK, "<Task 'thumbs' of redis://host:6379/0>"),
    "options": (TASK.options(id="a"), "<TaskEnqueuer 'thumbs' of redis://host:6379/0 with id='a'>"),
    "ticket": (APP.queue("mail").ticket("a", 5), "<Ticket mail/a revision 5>"),
    "receiver": (
        APP.queue("mail").receive(),
        "<Receiver 'mail' of redis://host:6379/0, 0 of 10 claims held>",
    ),
    "feed": (APP.queue("mail").events("7"), "<Feed 'mail' of redis://host:6379/0 after '7'>"),
}


@pytest.mark.parametrize(("handle", "shown"), HANDLES.values(), ids=HANDLES)
def test_a_handle_shows_what_it_is_but_no_password(handle: Any, shown: str) -> None:
    assert repr(handle) == shown
    assert repr(handle.sync) == f"<Blocking{shown[1:]}"


async def test_a_connection_is_not_part_of_a_repr() -> None:
    """The repr of a connection may contain its password."""
    assert "secret" not in repr(TASK.options(connection="postgresql://me:secret@host"))


def test_an_app_without_a_url_says_so() -> None:
    assert repr(Dibs()) == f"<Dibs of {StorageHandle(None, {}).redacted_url}>"
