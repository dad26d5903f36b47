"""The enqueue requests of a large write as columns, without an object for each request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from msgspec import Struct

from dibs.model.job import NO_ATTRIBUTES, JobData, NewJob
from dibs.model.requests import DEFAULT_UPDATE, EnqueueRequest, OnConflict

#: Bytes of a member of a key set.
MEMBER_BYTES: Final = 16


class RequestColumns(Struct, frozen=True, kw_only=True):
    """A list for each field of the requests. None stands for a field that each request leaves at its default.

    Whoever makes the columns has checked each value as `dibs.model.check_jobs.check_request` does.
    """

    ids: list[str]
    payloads: list[bytes]
    #: The request keys as members of a key set, MEMBER_BYTES each. No member occurs twice.
    members: list[bytes]
    priorities: list[int] | None = None
    #: Start times in ms since the epoch.
    run_ats: list[int | None] | None = None
    keys: list[str | None] | None = None
    attributes: list[Mapping[str, bytes]] | None = None
    conflicts: list[OnConflict] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def slice(self, start: int, stop: int) -> Self:
        """Return the requests from `start` to `stop`, which is not included."""
        return self._map(lambda column: column[start:stop])

    def take(self, rows: Sequence[int]) -> Self:
        """Return the requests with these indexes, in this order."""
        return self._map(lambda column: [column[row] for row in rows])

    def _map(self, change: Any) -> Self:
        columns: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        return type(self)(**{name: column and change(column) for name, column in columns.items()})

    @property
    def is_plain(self) -> bool:
        """True if each request sets only id and payload, besides its member."""
        return (
            self.conflicts is None
            and self.attributes is None
            and self.run_ats is None
            and self.keys is None
            and not any(self.priorities or ())
        )

    def requests(self, key_prefix: str | None) -> list[EnqueueRequest]:
        """Return an object for each request. The request key is the prefix, "/" and the member as text.

        Without a prefix, no request has a request key.
        """
        count = len(self)
        return [
            EnqueueRequest(
                job=NewJob(
                    id=id,
                    data=JobData(payload=payload, attributes=attributes, priority=priority, key=key),
                    run_at=run_at,
                ),
                on_conflict=conflict,
                request_key=None if key_prefix is None else f"{key_prefix}/{member_text(member)}",
            )
            for id, payload, member, priority, run_at, key, attributes, conflict in zip(
                self.ids,
                self.payloads,
                self.members,
                self.priorities or [0] * count,
                self.run_ats or [None] * count,
                self.keys or [None] * count,
                self.attributes or [NO_ATTRIBUTES] * count,
                self.conflicts or [DEFAULT_UPDATE] * count,
                strict=True,
            )
        ]


def make_member(digest: bytes, earlier: int) -> bytes:
    """Return the member of a request: the digest (12 bytes) of its identity, and how often it came before."""
    return digest + earlier.to_bytes(4)


def member_text(member: bytes) -> str:
    """Return a member as the last part of a request key."""
    return f"{member[:12].hex()}/{int.from_bytes(member[12:])}"
