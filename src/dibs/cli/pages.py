"""Pages of jobs, as full as the limit allows."""

from __future__ import annotations

from dibs.model.results import ListPage, State
from dibs.storage.protocol import Storage


async def read_page(storage: Storage, queue: str, state: State, *, after: str | None, limit: int) -> ListPage:
    """Return up to `limit` jobs in a state, and the cursor behind them; fewer only if no job is left.

    One call of a storage may return a short or an empty page before the last. A program that stops at it
    would miss the jobs behind it.
    """
    page = await storage.list(queue, state, after=after, limit=limit)
    while page.after is not None and len(page.items) < limit:
        more = await storage.list(queue, state, after=page.after, limit=limit - len(page.items))
        page = ListPage(items=(*page.items, *more.items), after=more.after)
    return page
