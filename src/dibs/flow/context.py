"""The parts of an app that flows use, and `Node`, which stands for a job of a flow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, NoReturn, TypeVar, cast

from attrs import frozen

from dibs.client.calls.handler_registry import HandlerRegistry
from dibs.client.connection.queue_client import QueueClient, QueueClients
from dibs.client.connection.storage_handle import StorageHandle
from dibs.model.wakeup import FLOWS

R_co = TypeVar("R_co", covariant=True)
#: Returns an encoded result as the return type of the function of a task. Raises ValueError.
ResultDecoder = Callable[[bytes], Any]


@frozen(eq=False)
class FlowContext:
    """The storage, the queues and the handlers of an app."""

    storage_handle: StorageHandle
    clients: QueueClients
    handlers: HandlerRegistry
    #: Returns the decoder of results of a queue: that of the app's task, or else of the queue's serde.
    decoder_of: Callable[[str], ResultDecoder]

    def client(self, queue: str) -> QueueClient:
        return self.clients.get(queue, None)

    @property
    def flows(self) -> QueueClient:
        """The client of the queue of flows."""
        return self.client(FLOWS)


class Node(Generic[R_co]):
    """A job of a flow, returned by `flow.add`. Pass it, or its `output`, as an argument of a later node."""

    # Not an attrs class: the default serde would encode it as an object.
    __slots__ = ("_decode", "_flow", "number", "queue")

    def __init__(self, flow: object, number: int, queue: str, decode: ResultDecoder) -> None:
        self._flow = flow
        self._decode = decode
        self.number: int = number
        """The number of the node in its flow, from 0."""
        self.queue: str = queue
        """Name of the queue."""

    def __repr__(self) -> str:
        return f"<Node {self.number} in {self.queue!r}>"

    @property
    def output(self) -> R_co:
        """This node, typed as its result: pass it as an argument to get the result in its place."""
        return cast("R_co", self)

    @property
    def decode(self) -> ResultDecoder:
        """The decoder of the result."""
        return self._decode

    def belongs_to(self, flow: object) -> bool:
        return self._flow is flow

    def __reduce__(self) -> NoReturn:
        raise TypeError("a node stands for a result that does not exist yet; pass it to flow.add only")
