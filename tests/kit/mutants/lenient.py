"""Storages that break promise 8, the same check everywhere. Each wraps a memory storage and changes one verb.

They accept bad input, raise another error, change something before a call is refused, or fail with values of
subclasses. L0 finds each of them, with the checks of bad arguments and of subclasses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dibs.errors import Refused
from dibs.storage.protocol import Storage


class Lenient:
    """A storage with the checks of memory. Its subclasses change one call."""

    def __init__(self, storage: Storage) -> None:
        self._storage: Any = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)


class NulInQueueName(Lenient):
    """A storage whose `claim` removes a NUL from the name of a queue."""

    async def claim(self, queue: Any, *rest: Any, **when: Any) -> Any:
        name = queue.replace("\0", "") if isinstance(queue, str) else queue
        return await self._storage.claim(name, *rest, **when)


class LongQueueName(Lenient):
    """A storage whose `events` cuts the name of a queue."""

    async def events(self, queue: Any, **words: Any) -> Any:
        name = queue[:500] if isinstance(queue, str) else queue
        return await self._storage.events(name, **words)


class BoolIsNumber(Lenient):
    """A storage whose `reap` takes True for 1."""

    async def reap(self, queue: str, limit: Any, **when: Any) -> Any:
        return await self._storage.reap(queue, int(limit) if isinstance(limit, bool) else limit, **when)


class LimitIsCut(Lenient):
    """A storage whose `prune` takes a limit above 2**53."""

    async def prune(self, queue: str, limit: Any, **when: Any) -> Any:
        return await self._storage.prune(
            queue, min(limit, 2**53) if isinstance(limit, int) else limit, **when
        )


class NumberIsText(Lenient):
    """A storage whose `cancel` takes the id 5 for the id "5"."""

    async def cancel(self, queue: str, ids: Any, **words: Any) -> Any:
        texts = [str(id) if isinstance(id, int) else id for id in ids] if isinstance(ids, list) else ids
        return await self._storage.cancel(queue, texts, **words)


class OtherError(Lenient):
    """A storage whose `amend` raises a TypeError for bad input."""

    async def amend(self, *arguments: Any, **when: Any) -> Any:
        try:
            return await self._storage.amend(*arguments, **when)
        except Refused as refused:
            raise TypeError(str(refused)) from None


class OtherField(Lenient):
    """A storage whose `grant` names another argument in its errors."""

    async def grant(self, *arguments: Any, **when: Any) -> Any:
        try:
            return await self._storage.grant(*arguments, **when)
        except Refused as refused:
            raise Refused(str(refused), field="arguments") from None


class ForgetsHalf(Lenient):
    """A storage whose `forget` checks each id when it has removed the ids before."""

    async def forget(self, queue: str, ids: Any, **when: Any) -> Any:
        if not isinstance(ids, list | tuple):
            return await self._storage.forget(queue, ids, **when)
        return [(await self._storage.forget(queue, [id], **when))[0] for id in ids]


class RenewsHalf(Lenient):
    """A storage whose `renew` checks each queue when it has renewed the lease in the queues before."""

    async def renew(self, queues: Any, *rest: Any, **when: Any) -> Any:
        if not isinstance(queues, list | tuple):
            return await self._storage.renew(queues, *rest, **when)
        renewed: dict[str, Any] = {}
        for queue in queues:
            renewed |= await self._storage.renew([queue], *rest, **when)
        return renewed


class ImportsHalf(Lenient):
    """A storage whose `import_` checks each record when it has written the records before."""

    async def import_(self, queue: str, records: Any, **when: Any) -> Any:
        if not isinstance(records, list | tuple):
            return await self._storage.import_(queue, records, **when)
        return [(await self._storage.import_(queue, [one], **when))[0] for one in records]


class AnySettlement(Lenient):
    """A storage whose `settle` answers `lost` for a settlement that it cannot read."""

    async def settle(self, queue: str, settlements: Any, **when: Any) -> Any:
        try:
            return await self._storage.settle(queue, settlements, **when)
        except Refused as refused:
            if refused.field != "fence":
                raise
            return await self._storage.settle(queue, settlements[:-1], **when)


class ConvertsText(Lenient):
    """A storage that stores `str(id)`."""

    async def cancel(self, queue: str, ids: Any, **words: Any) -> Any:
        plain = not isinstance(ids, Sequence) or isinstance(ids, str)
        texts = ids if plain else [str(id) if isinstance(id, str) else id for id in ids]
        return await self._storage.cancel(queue, texts, **words)


class RefusesSubclasses(Lenient):
    """A storage whose `report` takes no subclass of bytes."""

    async def report(self, queue: str, id: str, fence: int, progress: Any, *memo: Any, **when: Any) -> Any:
        if isinstance(progress, bytes) and type(progress) is not bytes:
            raise Refused("progress must be bytes", field="progress")
        return await self._storage.report(queue, id, fence, progress, *memo, **when)


#: The storages with wrong checks, with a part of the text that the kit reports for each.
LENIENT: Final[dict[type[Lenient], str]] = {
    NulInQueueName: "claim, queue: NUL: accepted",
    LongQueueName: "events, queue: 501 bytes: accepted",
    BoolIsNumber: "reap, limit: True: accepted",
    LimitIsCut: "prune, limit: 9007199254740993: accepted",
    NumberIsText: "cancel, ids[1]: a number: accepted",
    OtherError: "amend, priority 1001: TypeError",
    OtherField: "grant, queues: None: Refused for 'arguments'",
    ForgetsHalf: "forget: all bad input was refused, but the storage changed",
    RenewsHalf: "renew: a refused call with a second, bad queue renewed",
    ImportsHalf: "import_: all bad input was refused, but the storage changed",
    AnySettlement: "settle, settlements[1].fence: None: accepted",
}
