"""The storage as a simulated process sees it: a client whose calls cross a network with faults.

Each machine has a link. A call is a request to the server and a reply; the seed draws for each how long it
takes, and whether it is lost, sent twice, or never answered. The client reports what the contract asks for
(4.7): StorageUnavailable if nothing was written, OutcomeUnknown if the reply was lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Any, Final, Literal, Protocol, Self

from attrs import define, field

from dibs.errors import NotRunning, OutcomeUnknown, StorageUnavailable
from dibs.storage.capabilities import Capabilities
from dibs.storage.protocol import READS, VERBS
from dibs_conformance.simulation.world import Process

#: Seconds after which a client gives up a call without a reply, as the storages of dibs do.
REPLY_TIMEOUT: Final = 10.0
#: Seconds that a request or a reply takes: the usual range, and the range of a slow one.
QUICK: Final = (0.0002, 0.002)
SLOW: Final = (0.02, 1.5)
#: The verbs that a client may send again after a lost reply (contract 4, the table of repeats).
REPEATABLE: Final = READS | {"settle", "renew"}
#: Verbs beyond the protocol of each storage.
MORE_VERBS: Final = frozenset({"wait", "serve", "claim_blocking", "claim_blocking_any", "wake_claim"})


@define
class Link:
    """The state of the connection of one process. Chances are from 0 to 1, for each call."""

    #: "open"; "refused": a connection is refused at once; "silent": nothing arrives and nothing is refused.
    state: Literal["open", "refused", "silent"] = "open"
    slow: float = 0.0
    lose_request: float = 0.0
    lose_reply: float = 0.0
    repeat: float = 0.0
    #: The chance that a call hangs, as on a connection that is open on one side only.
    hang: float = 0.0
    #: The chance that the wake-up of a wait is lost: the wait then lasts until its timeout.
    lose_wakeup: float = 0.0

    def calm(self) -> None:
        """End all faults."""
        self.state = "open"
        self.slow = self.lose_request = self.lose_reply = self.repeat = self.hang = self.lose_wakeup = 0.0


@define(eq=False)
class Call:
    """One call on its way. The answer is a future of the caller's loop."""

    client: Process
    verb: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    answer: asyncio.Future[Any]
    #: False if the reply will be lost.
    reply_arrives: bool = True
    #: True if the client hears of a loss at once; False if it waits for its timeout.
    loss_is_seen: bool = True
    wakeup_is_lost: bool = False
    #: The task of a wait at the server.
    task: asyncio.Task[Any] | None = field(default=None, init=False)

    def resolve(self, result: Any, error: BaseException | None) -> None:
        """Give the caller the result or the error. Called on the loop of the client."""
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(result)
        else:
            self.answer.set_exception(error)

    def lost(self) -> Exception:
        """Return the error of a call whose reply was lost."""
        if self.verb in READS or self.verb == "wait":
            return StorageUnavailable(f"simulated: the connection was lost during {self.verb}")
        return OutcomeUnknown(f"simulated: the reply to {self.verb} was lost")


class CallReceiver(Protocol):
    """The other end of the network, as a client knows it."""

    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def storage(self) -> Any: ...
    def receive(self, call: Call) -> None: ...
    def forget(self, call: Call) -> None: ...


class RemoteStorage:
    """A storage behind the network: each verb is a call to the server. It passes for a Storage."""

    url: str = "simulated:"

    def __init__(self, server: CallReceiver, process: Process, link: Link) -> None:
        self._server, self._process, self._link = server, process, link
        self.capabilities = server.capabilities
        self.durability = server.storage.durability
        self._random: Random = process.world.random
        self._open = False

    async def __aenter__(self) -> Self:
        await self._send("queues", (), {})
        self._open = self._process.has_opened = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False

    def __getattr__(self, name: str) -> Any:
        if name in VERBS or (name in MORE_VERBS and hasattr(self._server.storage, name)):
            return partial(self._call, name)
        raise AttributeError(name)

    async def _call(self, verb: str, /, *args: Any, **kwargs: Any) -> Any:
        if not self._open:
            raise NotRunning(f"{self.url} is not open")
        return await self._send(verb, args, kwargs)

    async def _send(self, verb: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        draw, link, world = self._random.random, self._link, self._process.world
        if link.state == "refused":
            await asyncio.sleep(self._delay())
            raise StorageUnavailable("simulated: the connection was refused", passes=True)
        call = Call(self._process, verb, _snapshot(args), kwargs, self._process.loop.create_future())
        call.loss_is_seen = draw() >= link.hang and link.state == "open"
        call.reply_arrives = call.loss_is_seen and draw() >= link.lose_reply
        call.wakeup_is_lost = draw() < link.lose_wakeup
        # A long wait outlives the timeout of a reply, as a blocking command does.
        patience = REPLY_TIMEOUT + (kwargs.get("timeout") or 0.0)
        timer = self._process.loop.call_later(patience, call.resolve, None, call.lost())
        if link.state == "silent" or draw() < link.lose_request:
            if call.loss_is_seen:
                world.call_in(self._delay(), self._process.post, call.resolve, None, call.lost())
        else:
            self._deliver(call)
        try:
            return await call.answer
        except asyncio.CancelledError:
            world.call_in(self._delay(), self._server.forget, call)
            raise
        finally:
            timer.cancel()

    def _deliver(self, call: Call) -> None:
        world = self._process.world
        if self._may_repeat(call) and self._random.random() < self._link.repeat:
            first = Call(call.client, call.verb, call.args, call.kwargs, call.answer, reply_arrives=False)
            first.loss_is_seen = False
            delay = self._delay()
            world.call_in(delay, self._server.receive, first)
            world.call_in(delay + self._delay(), self._server.receive, call)
        else:
            world.call_in(self._delay(), self._server.receive, call)

    def _may_repeat(self, call: Call) -> bool:
        if call.verb == "enqueue":
            return all(request.request_key is not None for request in call.args[1])
        return call.verb in REPEATABLE

    def _delay(self) -> float:
        return delay_on(self._link, self._random)


def delay_on(link: Link, random: Random) -> float:
    """Return the seconds that one message takes on a link."""
    return random.uniform(*SLOW) if random.random() < link.slow else random.uniform(*QUICK)


def _snapshot(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments as they are now: a driver encodes them before it sends them."""
    return tuple(list(arg) if type(arg) is list else arg for arg in args)
