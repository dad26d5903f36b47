"""The error of a statement that waited too long for a lock of another transaction, with its holders."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from dibs.errors import StorageBusy

#: Most sessions that an error names.
_MOST: Final = 3


async def busy_error(connection: Any, url: str, query: bytes, schema: str) -> StorageBusy:
    """Return the error of a statement that the server rolled back because of a lock.

    It names the sessions whose open transactions hold locks on jobs of the schema. No text of a query is
    named, because it may hold secrets.
    """
    try:
        found = await (await connection.execute(query, {"schema": schema, "most": _MOST})).fetchall()
    except psycopg.Error:
        found = []
    holders = "; ".join(
        f"session {pid} ({name or 'no application_name'}, {state} for {seconds:.0f} s)"
        for pid, name, state, seconds in found
    )
    waits_for = "a lock that another transaction holds on its id"
    if holders:
        waits_for += f"; open transactions with locks on jobs: {holders}"
    return StorageBusy(f"{url}: nothing was written; waited for {waits_for}", waits_for=waits_for)
