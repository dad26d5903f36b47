"""The objects that the rows of bad input name, and the comparison of a storage before and after a call."""

from __future__ import annotations

import datetime as dt
import decimal
import inspect
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pydantic
from msgspec.structs import replace

import dibs
from dibs import BatchRefused, Dibs, Refused
from dibs.model import job as model_job
from dibs.model import requests as model_requests
from dibs.model.results import ExportRecord
from dibs.testing import assert_enqueued


class Row(NamedTuple):
    """One bad input."""

    #: The call, as an expression over the names of a World, or the words of a command.
    call: str
    #: The class of the error.
    error: type[BaseException]
    #: The field that the message names. It is also the attribute `field` of a Refused.
    field: str


def rows(*found: tuple[str, type[BaseException], str]) -> list[Row]:
    return [Row(*one) for one in found]


class Text(str):
    """A subclass of str that is no valid id."""

    __slots__ = ()


class Account(pydantic.BaseModel):
    """A model whose token is not sent."""

    token: str = pydantic.Field(default="", exclude=True)


class Trial(Account):
    """A subclass, which arrives as an Account."""


def close(account: Account) -> None:
    """A function that a token does not reach."""


def send(address: str, copies: int = 1) -> str:
    """The function of the task in the rows."""
    return address * copies


def hook(outcome: Any) -> None:
    """A function that takes one argument."""


JOB = model_job.Job(id="a", data=model_job.JobData(), run_at=0, enqueued_at=0, seq=1, first=1, revision=1)
RUN = model_job.ActiveRun(fence=2, lease="l", holder="h", claimed_at=0)
NEXT = model_job.Successor(
    data=model_job.JobData(), replaces=True, run_at=0, lo=None, hi=None, resets=True, enqueued_at=0, seq=3,
    first=3, revision=3,
)  # fmt: skip
ENDED = model_job.Outcome(kind="failed", fence=2, first=1, revision=1, ended_at=0, expires_at=None)

#: Names that need no storage.
NAMES: dict[str, Any] = {
    **{name: getattr(dibs, name) for name in dibs.__all__},
    **{name: value for name, value in vars(model_job).items() if name[0].isupper()},
    **{name: value for name, value in vars(model_requests).items() if name[0].isupper()},
    "ExportRecord": ExportRecord,
    "JOB": JOB,
    "RUN": RUN,
    "NEXT": NEXT,
    "ENDED": ENDED,
    "replace": replace,
    "LESS": model_job.OutcomeRetention(completed=-1),
    "Decimal": decimal.Decimal,
    "datetime": dt.datetime,
    "timedelta": dt.timedelta,
    "UTC": dt.UTC,
    "Text": Text,
    "inf": float("inf"),
    "nan": float("nan"),
    "send": send,
    "close": close,
    "Account": Account,
    "Trial": Trial,
    "hook": hook,
    "assert_enqueued": assert_enqueued,
}


def deep(levels: int) -> list[Any]:
    """Return lists that are nested `levels` deep."""
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


NAMES["deep"] = deep


class World(NamedTuple):
    """An open app with a queue, in which one job is active, one waits, one failed and one is handed off."""

    app: Dibs
    #: The names that a row may use.
    names: Mapping[str, Any]
    #: The queues whose contents are compared.
    queues: tuple[str, ...]

    async def contents(self) -> Any:
        """Return everything that a call could have written."""
        storage = self.app.storage
        names = sorted(info.name for info in await storage.queues() if info.name in self.queues)
        exported = [(await storage.export(name)).records for name in self.queues]
        settings = [info.settings for info in await storage.queues() if info.name in self.queues]
        events = [len((await storage.events(name, limit=1000)).events) for name in self.queues]
        return names, exported, settings, events

    async def call(self, expression: str) -> Any:
        """Evaluate a row, and finish what it returns: a coroutine, an async iterator or a context."""
        found = eval(expression, dict(self.names))
        if inspect.isawaitable(found):
            return await found
        if hasattr(found, "__aenter__"):
            async with found as entered:
                return entered
        if hasattr(found, "__aiter__"):
            return [one async for one in found]
        return found


@asynccontextmanager
async def opened(url: str, name: str) -> AsyncIterator[World]:
    """Open a world whose queues begin with `name`."""
    async with Dibs(url) as app:
        queue = app.queue(name)
        await queue.configure(log_level="all")
        for id in ("held", "handed", "failed"):
            await queue.enqueue(1, id=id)
        task = app.task(queue=f"{name}-task")(send)
        async with queue.receive(max_jobs=3, lease=3600, wait=5) as claims:
            claim, handed, failed = [await anext(claims) for _ in range(3)]
            revision = await handed.hand_off()
            await failed.fail("boom")
            ticket = await queue.enqueue(1, id="seen", delay=3600, attributes={"a": 1})
            names = {
                **NAMES,
                "app": app,
                "queue": queue,
                "task": task,
                "claim": claim,
                "ticket": ticket,
                "storage": app.storage,
                "name": name,
                "revision": revision,
                "fence": claim._job.run.fence if claim._job.run else 0,
                "lease": claim._lease,
                "at": dt.datetime.now(dt.UTC),
            }
            yield World(app, names, (name, f"{name}-task", f"{name}!fail"))


def first_refused(error: BaseException) -> BaseException:
    """Return the first Refused of a batch, and any other error unchanged."""
    return error.exceptions[0] if isinstance(error, BatchRefused) else error


def describe_difference(row: Row, error: BaseException | None) -> str | None:
    """Return how an error differs from that of the row, or None if it fits."""
    if error is None:
        return f"{row.call}: accepted, expected {row.error.__name__} for {row.field!r}"
    if type(error) is not row.error:
        return f"{row.call}: {type(error).__name__} instead of {row.error.__name__}: {error}"
    one = first_refused(error)
    if isinstance(one, Refused) and one.field not in (row.field, ""):
        return f"{row.call}: the field is {one.field!r} instead of {row.field!r}: {one}"
    if row.field not in str(one):
        return f"{row.call}: the message does not name {row.field!r}: {one}"
    return None


async def try_row(world: World, row: Row) -> str | None:
    """Make the call of a row. Return a description of its wrong error, or None."""
    try:
        await world.call(row.call)
    except Exception as error:  # noqa: BLE001 - another exception than that of the row is the finding
        return describe_difference(row, error)
    return describe_difference(row, None)
