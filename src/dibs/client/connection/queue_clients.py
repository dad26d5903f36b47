"""The clients of an app's queues: one for each name, with the serde of the queue."""

from __future__ import annotations

from attrs import define, field

from dibs.client.connection.queue_client import QueueClient
from dibs.client.connection.storage_handle import StorageHandle
from dibs.client.options.serde import JSON, Serde
from dibs.errors import ConfigurationError, Refused
from dibs.model.check_jobs import check_queue
from dibs.model.job import FAIL_SUFFIX


@define(eq=False)
class QueueClients:
    """The clients of the queues that an app has named so far. All share the storage of the app."""

    _storage_handle: StorageHandle
    _by_name: dict[str, QueueClient] = field(factory=dict, init=False)

    def get(self, name: str, serde: Serde | None) -> QueueClient:
        """Return the client of a queue; the first call makes it, with `serde` or the default serde.

        Raises Refused if the name is not allowed or `serde` is no serde, ConfigurationError if the queue has
        another serde.
        """
        check_queue(name)
        if serde is not None and not isinstance(serde, Serde):
            raise Refused(
                f"serde is {serde!r:.60}; pass an object with name, encode and decode, as JsonSerde()",
                field="serde",
            )
        known = self._by_name.get(name)
        if known is None:
            serde = serde or self._default_serde(name)
            known = self._by_name[name] = QueueClient(self._storage_handle, name, serde)
        if serde is not None and serde is not known.serde:
            raise ConfigurationError(
                f"queue {name!r} uses the serde {known.serde.name!r} already; "
                "pass serde= in the first call that names the queue"
            )
        return known

    def _default_serde(self, name: str) -> Serde:
        """Return the serde of a queue without `serde=`: JSON, or for a fail queue the serde of its queue.

        The fail queue of `emails` is `emails!fail`. A job of a fail queue has the payload of the failed job,
        byte for byte, so both queues need the same serde.
        """
        parent = self._by_name.get(name.removesuffix(FAIL_SUFFIX))
        return JSON if parent is None else parent.serde
