"""The base class of RedisStorage, which opens and closes it, sends its clock, and runs its scripts."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Coroutine, Sequence
from itertools import repeat
from types import TracebackType
from typing import Any, Final, ParamSpec, Self, TypeVar

from redis.exceptions import RedisError

from dibs.errors import NotRunning
from dibs.model.findings import Finding
from dibs.model.limits import LIMITS
from dibs.model.requests import Settlement
from dibs.storage import checks, clock
from dibs.storage.addresses import redact_url
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import Clock, Watch
from dibs.storage.redis import diagnosis, keys
from dibs.storage.redis.codec.jobs import UnreadableRecord
from dibs.storage.redis.codec.requests import encode_id
from dibs.storage.redis.codec.settlements import SettlementBatch
from dibs.storage.redis.network.address import MAX_CONNECTIONS, Remap, is_cluster_url
from dibs.storage.redis.network.client_settings import ClientSettings
from dibs.storage.redis.network.errors import damaged_error, translate_error
from dibs.storage.redis.network.opening import LAYOUT, check_servers, is_current_layout, servers_for
from dibs.storage.redis.network.rights import check_rights
from dibs.storage.redis.network.script_calls import ScriptCalls
from dibs.storage.redis.network.servers import Servers
from dibs.storage.redis.wakeups.blocking_claim import QueueGroups
from dibs.storage.redis.wakeups.listener import Subscription
from dibs.storage.redis.wakeups.wait import RedisWaits, WatchedQueue, decode_state
from dibs.storage.registry import check_poll

P = ParamSpec("P")
T = TypeVar("T")
#: The most jobs in one script call. Redis runs one script at a time, so a longer call would block all clients
#: of the server for more than some ms.
STEP: Final = 1000
#: The most jobs in one call of a script that parses and packs each job, which takes longer.
SMALL_STEP: Final = 200
#: The most queues in one call of a script that reads and writes few keys of each. It takes about 4 ms.
QUEUE_STEP: Final = 500
#: Number of queue names that a session remembers as registered, so that names used once cost no memory.
MAX_REMEMBERED: Final = 4096


class RedisSession:
    """The state and the methods that the verbs in storage.py share.

    `prefix` is the start of every key. `poll` is the interval in seconds at which a wait reads its queues, in
    case a wake-up was lost. `allow_eviction` accepts a server that may evict keys when its memory is full.
    `max_connections` limits the requests in flight to each server. `address_map` translates the addresses of
    the nodes of a cluster. `client` has the settings of a client of redis-py, and `url` is then its URL.
    """

    def __init__(
        self,
        url: str,
        *,
        clock: Clock = "system",
        prefix: str = "dibs",
        poll: float = 1.0,
        allow_eviction: bool = False,
        client: ClientSettings | None = None,
        max_connections: int = MAX_CONNECTIONS,
        address_map: Remap | None = None,
    ) -> None:
        self.url = redact_url(url)
        self.limits = LIMITS
        self.durability = "known once it is open"
        # A closure, so that no repr and no traceback shows the password in the URL.
        self._make_servers: Callable[[], Servers] = lambda: servers_for(
            url, client=client, max_connections=max_connections, address_map=address_map
        )
        self._manual = clock == "manual"
        self._prefix = keys.check_prefix(prefix)
        check_poll(poll)
        self._poll, self._allow_eviction = poll, allow_eviction
        self._cluster = is_cluster_url(url)
        self.capabilities = Capabilities(
            durable=True,
            shared=True,
            cross_queue=not self._cluster,
            push_wakeups=True,
            manual_clock=True,
            server_clock=True,
            # A blocking claim runs later than it is sent, so only the server knows its time.
            blocking_claim=not self._manual,
            limits=True,
            fair=True,
            output=True,
            # All keys of one script must be on one server.
            many_queues=not self._cluster,
        )
        self._calls: ScriptCalls | None = None
        self._waits: RedisWaits | None = None
        #: True once the server has the version of this layout. Opening only reads; the first use of a queue
        #: writes it.
        self._has_layout = False
        #: Queues whose names this session has added to the set of queue names.
        self._registered: set[str] = set()
        self._groups = QueueGroups(self._prefix)
        self._manual_now = 0
        # Raises UnknownOption for a wrong URL before `open`.
        self._database = self._make_servers().database

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
        """Connect, and check that the servers can keep jobs. Raise StorageError if not."""
        servers = self._make_servers()
        try:
            has_functions = await check_rights(servers, self.url, self._prefix)
            self.durability = await check_servers(servers, self.url, allow_eviction=self._allow_eviction)
            self._has_layout = await is_current_layout(servers, self.url, self._prefix)
        except RedisError as error:
            await servers.close()
            raise translate_error(error, self.url) from None
        except BaseException:
            await servers.close()
            raise
        self._calls = ScriptCalls(servers, self.url, has_functions)
        subscription = Subscription(servers)
        self._waits = RedisWaits(
            subscription, self._read_states, self._channel_prefix, self._poll, self._manual
        )

    async def diagnose(self) -> list[Finding]:
        """Examine the servers; see dibs.storage.abilities.Diagnosis."""
        return await diagnosis.diagnose(
            self._make_servers(), self.url, self._prefix, allow_eviction=self._allow_eviction
        )

    async def close(self) -> None:
        """Close the connections. Pending waits raise NotRunning."""
        calls, waits = self._calls, self._waits
        self._calls = self._waits = None
        if waits is not None:
            await waits.close()
        if calls is not None:
            await calls.servers.close()

    def _queue_prefix(self, queue: str) -> str:
        return keys.queue_prefix(self._prefix, queue)

    def _declared_keys(self, *queues: str) -> list[str]:
        """Return the keys that a call of a script on these queues declares."""
        # keys.queue_prefix is cached.
        prefixes = list(map(keys.queue_prefix, repeat(self._prefix), queues))
        return keys.declared_in_cluster(prefixes) if self._cluster else prefixes

    def _channel_prefix(self, queue: str) -> str:
        return keys.channel_prefix(self._queue_prefix(queue), self._database)

    def _time_argument(self, now: int | None) -> str:
        """Return the time argument of a script: a manual time in ms, or "" for the server's clock."""
        checks.check_now(now, manual=self._manual)
        if not self._manual:
            return ""
        if now is not None and now > self._manual_now:
            self._manual_now = now
            if self._waits is not None:
                self._waits.wake_all()
        return str(self._manual_now)

    def _report_leads(self, queues: Sequence[str], leads: Sequence[Any]) -> None:
        """Warn of each queue whose time is ahead of its server's clock, once in this process."""
        for queue, lead in zip(queues, leads, strict=True):
            clock.report_lead(f"queue {queue!r} of {self.url}", int(lead))

    # -- run scripts ---------------------------------------------------------------------------------

    def _run_script(
        self,
        name: str,
        queue: str,
        now: int | None,
        *arguments: Any,
        more_queues: Sequence[str] = (),
        repeatable: bool = False,
        ahead: Sequence[tuple[Any, ...]] = (),
    ) -> Coroutine[Any, Any, Any]:
        """Run a script on a queue, and return its reply.

        The script may also write to `more_queues`. The commands `ahead` run before it. With `repeatable`, it
        is sent again if its reply is lost. Raise OutcomeUnknown for a lost reply otherwise.
        """
        at, declared = self._time_argument(now), self._declared_keys(queue, *more_queues)
        return self._open_calls().run(name, declared, [at, *arguments], repeatable=repeatable, ahead=ahead)

    async def _run_plain_script(self, name: str, key: str, *arguments: Any) -> None:
        """Run a script of one key that belongs to no queue. It must be safe to run twice."""
        await self._open_calls().run(name, [key], [*arguments], repeatable=True)

    async def _run_script_untimed(self, name: str, queue: str, arguments: Sequence[Any]) -> Any:
        """Run a script that takes no time. It must be safe to run twice: a lost reply sends it again."""
        declared = self._declared_keys(queue)
        return await self._open_calls().run(name, declared, [*arguments], repeatable=True)

    async def _run_on_each(
        self, name: str, queues: Sequence[str], now: int | None, *arguments: Any, repeatable: bool = False
    ) -> list[Any]:
        """Run the same step in each queue: on a single server with one request for each QUEUE_STEP queues.

        Return one reply per queue. Raise the first error after the steps of the other queues.
        """
        step = 1 if self._cluster else QUEUE_STEP
        parts = [queues[first : first + step] for first in range(0, len(queues), step)]
        calls = [
            self._run_script(
                name, part[0], now, len(part), *arguments, more_queues=part[1:], repeatable=repeatable
            )
            for part in parts
        ]
        replies = [reply for part in await asyncio.gather(*calls) for reply in part]
        for reply in replies:
            if isinstance(reply, RedisError):
                raise translate_error(reply, self.url)
        return replies

    async def _run_in_steps(
        self, name: str, queue: str, ids: Sequence[str], now: int | None, *arguments: Any
    ) -> list[Any]:
        """Run a script on ids, at most SMALL_STEP ids in each call. Return one reply per id."""
        replies: list[Any] = []
        self._time_argument(now)
        for first in range(0, len(ids), SMALL_STEP):
            step = [encode_id(id) for id in ids[first : first + SMALL_STEP]]
            replies += await self._run_script(name, queue, now, *arguments, *step)
        return replies

    def _decode(self, queue: str, decode: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Decode a reply about a queue. Raise StorageDamaged for a record in it that cannot be read."""
        try:
            return decode(*args, **kwargs)
        except UnreadableRecord as found:
            raise damaged_error(self.url, queue, found.part, found.id) from None

    async def _run_command(self, key: str, *command: Any) -> Any:
        """Send a repeatable Redis command, not a script, to the server of `key`, and return its reply."""
        servers = self._open_calls().servers
        try:
            return await servers.call(key, *command, repeatable=True)
        except RedisError as error:
            raise translate_error(error, self.url) from None

    def _open_calls(self) -> ScriptCalls:
        """Return the calls of the open servers. Raise NotRunning."""
        if self._calls is None:
            raise self._not_open_error()
        return self._calls

    def _not_open_error(self) -> NotRunning:
        return NotRunning(f"{self.url} is not open; use the storage inside `async with`")

    async def _register(self, *queues: str, adds_jobs: bool = False) -> None:
        """Add queues to the set of queue names, before their first use by this session.

        A full server refuses this if the use of the queue `adds_jobs`, and accepts it otherwise.
        """
        if not self._registered.issuperset(queues):
            new = [queue for queue in queues if queue not in self._registered]
            key = keys.registry_key(self._prefix)
            if adds_jobs:
                await self._run_command(key, "SADD", key, *new)
                for queue in new:
                    meta = self._queue_prefix(queue) + "meta"
                    await self._run_command(meta, "HSETNX", meta, "secret", secrets.token_hex(16))
            else:
                await self._run_plain_script("register", key, *new)
            if not self._has_layout:
                await self._run_plain_script("raise_layout", keys.version_key(self._prefix), LAYOUT)
                self._has_layout = True
            if len(self._registered) > MAX_REMEMBERED:
                self._registered.clear()  # the next use of each queue adds its name again, which is harmless
            self._registered.update(new)

    async def _read_states(self, queues: Sequence[str], watch: Watch) -> list[WatchedQueue]:
        replies = await self._run_on_each("watch", queues, None, watch, repeatable=True)
        return [decode_state(state) for state in replies]

    async def _encode_settlements(self, queue: str, settlements: Sequence[Settlement]) -> SettlementBatch:
        batch = self._batch_of(queue, settlements)
        await self._register(*batch.queues)
        return batch

    def _batch_of(self, queue: str, settlements: Sequence[Settlement]) -> SettlementBatch:
        batch = SettlementBatch(queue, self.limits, cross_queue=self.capabilities.cross_queue)
        batch.add(settlements)
        return batch
