"""Probes with more entries than fit on a page or into one step of a storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from dibs.model.job import NewJob
from dibs.model.requests import EnqueueRequest, SettingsPatch
from dibs.storage.protocol import Storage

NOW: Final = 1_767_225_600_000
#: The default of the argument `limit` of list, export and events.
DEFAULT_LIMIT: Final = 100
#: A number of jobs and events that needs two pages of the default size.
JOBS: Final = DEFAULT_LIMIT + 1
#: The number of `configure` calls, each of which logs an event. Pruning so many events takes several calls.
STEPS: Final = 1_100
#: The limit of each prune, and the number of calls after which `more` must be False.
PRUNE_LIMIT: Final = 100
MOST_PRUNES: Final = STEPS // PRUNE_LIMIT + 4


async def check_default_limits(storage: Storage) -> tuple[int, list[str]]:
    """Read 101 jobs and their events with the default limit. Each must come once, at most 100 on a page."""
    await storage.configure("q", SettingsPatch(log_level="all"), now=NOW)
    ids = [str(number) for number in range(JOBS)]
    logged = (await storage.events("q", now=NOW)).offset
    await storage.enqueue("q", [EnqueueRequest(job=NewJob(id=id)) for id in ids], now=NOW)

    async def list_page(after: str | None) -> tuple[list[str], str | None]:
        page = await storage.list("q", "waiting", **cursor(after), now=NOW)
        return [id for id, _ in page.items], page.after

    async def export_page(after: str | None) -> tuple[list[str], str | None]:
        exported = await storage.export("q", **cursor(after))
        return [record.id for record in exported.records], exported.after

    async def events_page(after: str | None) -> tuple[list[str], str | None]:
        page = await storage.events("q", after=after or logged, now=NOW)
        return [event.id for _, event in page.events], page.offset if page.events else None

    wrong = [
        *await find_page_errors("list", ids, list_page),
        *await find_page_errors("export", ids, export_page),
        *await find_page_errors("events", ids, events_page),
    ]
    return 3, wrong


def cursor(after: str | None) -> dict[str, Any]:
    """Return the argument for the next page. Leave it out for the first page, to use its default."""
    return {} if after is None else {"after": after}


async def find_page_errors(
    verb: str, ids: list[str], read: Callable[[str | None], Awaitable[tuple[list[str], str | None]]]
) -> list[str]:
    found: list[str] = []
    after: str | None = None
    for _ in range(JOBS + 2):
        page, after = await read(after)
        if len(page) > DEFAULT_LIMIT:
            return [f"{verb} without a limit returned {len(page)} ids on a page; expected at most 100"]
        found += page
        if after is None:
            break
    same = sorted(found) == sorted(ids)
    return [] if same else [f"{verb} without a limit returned {len(found)} ids of {len(ids)}, or other ones"]


async def check_long_log(storage: Storage) -> tuple[int, list[str]]:
    """Prune a log of 1,100 expired entries. Prune must end, and then the log must be empty."""
    await storage.configure("q", SettingsPatch(log_level="all"), now=NOW)
    for step in range(STEPS):
        await storage.configure("q", SettingsPatch(paused=step % 2 == 0), now=NOW)
    later = NOW + (await storage.configure("q", SettingsPatch(), now=NOW)).log_age + 1
    answer, calls = await storage.prune("q", PRUNE_LIMIT, now=later), 1
    while answer.more and calls < MOST_PRUNES:
        answer, calls = await storage.prune("q", PRUNE_LIMIT, now=later), calls + 1
    if answer.more:
        return 1, [f"prune with the limit {PRUNE_LIMIT} says `more` after {MOST_PRUNES} calls: {answer}"]
    left = (await storage.events("q", limit=STEPS, now=later)).events
    return 2, [f"after prune answered {answer}, {len(left)} expired events are left"] if left else []
