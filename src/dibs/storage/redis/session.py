"""An open place in Redis: its servers, its clock, and how a script is run there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

from redis.exceptions import RedisError

from dibs.errors import NotRunning
from dibs.model.limits import LIMITS
from dibs.storage import checks
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock
from dibs.storage.redis import keys
from dibs.storage.redis.codec.requests import encode_id
from dibs.storage.redis.network.errors import translate_error
from dibs.storage.redis.network.opening import check_servers, display_url, servers_for
from dibs.storage.redis.network.scripts import script
from dibs.storage.redis.network.servers import Servers, run_script
from dibs.storage.redis.wakeups.listener import Subscription
from dibs.storage.redis.wakeups.wait import QueueState, RedisWaits, decode_state

#: Jobs in one step: what takes longer than some ms would hold up everyone else on the server.
STEP: Final = 1000
#: The same where each job is taken apart and put together again.
SMALL_STEP: Final = 200


class RedisPlace:
    """What verbs stand on.

    `prefix` begins every key; `poll` is how many seconds a lost wake-up may cost.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = "system",
        prefix: str = "dibs",
        poll: float = 1.0,
        allow_eviction: bool = False,
    ) -> None:
        self.url = display_url(url)
        self.limits = LIMITS
        self.durability = "known once it is open"
        # In a closure, where no repr and no traceback shows what is secret in it.
        self._make_servers: Callable[[], Servers] = lambda: servers_for(url)
        self._manual = clock == "manual"
        self._prefix = keys.checked_prefix(prefix)
        self._poll, self._allow_eviction = poll, allow_eviction
        self._cluster = url.startswith("redis+cluster:")
        self.capabilities = Capabilities(
            durable=True,
            shared=True,
            cross_queue=not self._cluster,
            push_wakeups=True,
            manual_clock=True,
            # The time of a parked claim is the server's.
            blocking_claim=not self._manual,
        )
        self._servers: Servers | None = None
        self._waits: RedisWaits | None = None
        self._known: set[str] = set()
        self._seen = 0
        self._make_servers()  # what is wrong with the URL is told now

    def __repr__(self) -> str:
        return f"<RedisStorage {self.url}>"

    # -- open and close ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connect, and see that the server can keep jobs. Raises StorageError."""
        servers = self._make_servers()
        try:
            self.durability = await check_servers(
                servers, self.url, self._prefix, allow_eviction=self._allow_eviction
            )
        except RedisError as error:
            await servers.close()
            raise translate_error(error, self.url) from None
        except BaseException:
            await servers.close()
            raise
        self._servers = servers
        subscription = Subscription(servers.subscriber())
        self._waits = RedisWaits(subscription, self._read_state, self._beginning, self._poll, self._manual)

    async def close(self) -> None:
        """Close the connections; waits end."""
        servers, waits = self._servers, self._waits
        self._servers = self._waits = None
        if waits is not None:
            await waits.close()
        if servers is not None:
            await servers.close()

    def _beginning(self, queue: str) -> str:
        return keys.beginning(self._prefix, queue)

    def _time(self, now: int | None) -> str:
        """Return the time of a step as scripts take it: '' for Redis's own."""
        checks.check_now(now, manual=self._manual)
        if not self._manual:
            return ""
        if now is not None and now > self._seen:
            self._seen = now
            if self._waits is not None:
                self._waits.wake_all()
        return str(self._seen)

    async def _run(
        self,
        name: str,
        queue: str,
        now: int | None,
        *words: Any,
        others: Sequence[str] = (),
        repeatable: bool = False,
    ) -> Any:
        """Run the script of a verb in a queue; `others` are further queues it writes to."""
        servers, at = self._servers, self._time(now)
        if servers is None:
            raise NotRunning(f"{self.url} is not open")
        beginnings = [self._beginning(one) for one in (queue, *others)]
        return await run_script(
            servers, self.url, script(name), beginnings, [at, *words], repeatable=repeatable
        )

    async def _plain(self, key: str, *command: Any) -> Any:
        """Send one plain command that may be repeated."""
        if self._servers is None:
            raise NotRunning(f"{self.url} is not open")
        try:
            return await self._servers.call(key, *command, repeatable=True)
        except RedisError as error:
            raise translate_error(error, self.url) from None

    async def _register(self, *queues: str) -> None:
        """Let queues be known by name, before they are used for the first time from here."""
        fresh = [queue for queue in queues if queue not in self._known]
        if fresh:
            key = keys.registry_key(self._prefix)
            await self._plain(key, "SADD", key, *fresh)
            self._known.update(fresh)

    async def _each(self, name: str, queues: Sequence[str], now: int | None, *words: Any) -> list[Any]:
        return await asyncio.gather(*(self._run(name, queue, now, *words) for queue in queues))

    async def _in_steps(
        self, name: str, queue: str, ids: Sequence[str], now: int | None, *first: Any
    ) -> list[Any]:
        """Run a verb over ids, a bounded number at a time."""
        replies: list[Any] = []
        self._time(now)
        for at in range(0, len(ids), SMALL_STEP):
            part = [encode_id(id) for id in ids[at : at + SMALL_STEP]]
            replies += await self._run(name, queue, now, *first, *part)
        return replies

    async def _run_bare(self, name: str, queue: str, words: Sequence[Any]) -> Any:
        """Run a script that takes no time."""
        if self._servers is None:
            raise NotRunning(f"{self.url} is not open")
        keys = [self._beginning(queue)]
        return await run_script(self._servers, self.url, script(name), keys, [*words], repeatable=True)

    async def _read_state(self, queue: str) -> QueueState:
        return decode_state(await self._run("watch", queue, None, repeatable=True))
