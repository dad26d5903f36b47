"""The batches of large writes on Postgres: one statement for the jobs and their packed request keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, get_args

from dibs.model.request_columns import MEMBER_BYTES, RequestColumns
from dibs.model.requests import OnConflict, Reject
from dibs.model.results import EnqueueStatus
from dibs.storage import checks
from dibs.storage.abilities import StoredMembers
from dibs.storage.postgres.codec.parameters import attributes_to_json, encode_on_conflict
from dibs.storage.postgres.codec.rows import DECODE_ERRORS, UnreadableRow
from dibs.storage.postgres.session import PostgresSession

#: Batches of a key set in one page: up to 16 MB.
_PAGE: Final = 1000
#: Status -> the same text. Postgres returns a new str for each element.
_STATUSES: Final[dict[str, EnqueueStatus]] = {name: name for name in get_args(EnqueueStatus)}


class KeySetSession(PostgresSession):
    """The methods of `dibs.storage.abilities.KeySets`."""

    async def read_key_set(
        self, queue: str, name: str, *, after: int = 0, now: int | None = None
    ) -> StoredMembers:
        params = {**self._check_common(queue, now), "name": name, "after": after, "limit": _PAGE}
        rows = await self._run_read("read_key_set", params)
        found = self.decode(queue, _decode_batches, name, rows)
        return StoredMembers(found, rows[-1][0] if rows else after, len(rows) == _PAGE)

    async def enqueue_batch(
        self, queue: str, name: str, number: int, columns: RequestColumns, *, now: int | None = None
    ) -> Sequence[EnqueueStatus] | None:
        checks.check_enqueue(queue, (), self.limits)
        params = {
            "queue": queue,
            "now": self._time_parameter(now),
            "name": name,
            "number": number,
            **encode_columns(columns),
        }
        ((taken, statuses),) = await self._run_write("enqueue_batch", params)
        return None if taken else _decode_statuses(statuses, len(columns))


def encode_columns(columns: RequestColumns) -> dict[str, Any]:
    """Return the parameters of enqueue_batch(): an array for each field."""
    conflicts = columns.conflicts
    return {
        "keys": b"".join(columns.members),
        "ids": columns.ids,
        "payloads": columns.payloads,
        "priorities": columns.priorities,
        "whens": columns.run_ats,
        "hows": None if conflicts is None else [encode_on_conflict(conflict) for conflict in conflicts],
        "attributes": columns.attributes and [attributes_to_json(each) for each in columns.attributes],
        "job_keys": columns.keys,
        "plain": len(set(columns.ids)) == len(columns) and not any(map(_is_special, conflicts or ())),
    }


def _is_special(conflict: OnConflict) -> bool:
    """Return whether a single request with this rule needs the general path of enqueue()."""
    return isinstance(conflict, Reject) or not conflict.create


def _decode_batches(name: str, rows: Sequence[Sequence[Any]]) -> dict[bytes, EnqueueStatus]:
    found: dict[bytes, EnqueueStatus] = {}
    try:
        for _, packed, statuses in rows:
            members = _split_members(packed or b"")
            found.update(zip(members, _decode_statuses(statuses, len(members)), strict=True))
    except DECODE_ERRORS:
        raise UnreadableRow(f"key set {name!r}") from None
    return found


def _split_members(packed: bytes) -> list[bytes]:
    return [packed[start : start + MEMBER_BYTES] for start in range(0, len(packed), MEMBER_BYTES)]


def _decode_statuses(statuses: Sequence[str] | None, count: int) -> Sequence[EnqueueStatus]:
    return ["queued"] * count if statuses is None else [_STATUSES[status] for status in statuses]
