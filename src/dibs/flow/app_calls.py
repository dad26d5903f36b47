"""The methods of an app that make and find flows; the base class of Dibs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from dibs.errors import ConfigurationError
from dibs.flow.wakeup import EVALUATIONS, FLOWS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dibs.client.calls.bound_job import Bound
    from dibs.client.calls.handler_registry import HandlerRegistry
    from dibs.client.connection.queue_clients import QueueClients
    from dibs.client.connection.storage_handle import StorageHandle
    from dibs.client.options.durations import Seconds
    from dibs.client.task import TaskEnqueuer
    from dibs.flow.batch.batch import Batch
    from dibs.flow.batch.stored_batch import StoredBatch
    from dibs.flow.builder import Flow, FlowSettings
    from dibs.flow.chain import Chain
    from dibs.flow.context import FlowContext
    from dibs.flow.stored_flow import StoredFlow

#: Seconds for which the outcomes of nodes are kept at least, by default: 7 days.
KEEP_SECONDS = 7 * 86_400.0


class FlowCalls:
    """The methods of an app for flows. They need `Dibs(url, flows=True)`."""

    _storage_handle: StorageHandle
    handlers: HandlerRegistry
    _clients: QueueClients
    #: Set by `_enable_flows`.
    _flow_context: FlowContext | None = None

    def _enable_flows(self, decoder_of: Callable[[str], Callable[[bytes], Any]]) -> None:
        """Register the handlers of flows. Only an app with flows imports their modules."""
        from dibs.flow.context import FlowContext  # noqa: PLC0415 - keeps `import dibs` fast
        from dibs.flow.running.handlers import register_flow_handlers  # noqa: PLC0415 - the same

        context = FlowContext(self._storage_handle, self._clients, self.handlers, decoder_of)
        register_flow_handlers(context)
        self._flow_context = context

    def _require_flows(self) -> FlowContext:
        if self._flow_context is None:
            raise ConfigurationError(
                "this app has no flows; make it with Dibs(url, flows=True), whose workers also serve the "
                f"queues {FLOWS!r} and {EVALUATIONS!r}"
            )
        return self._flow_context

    def flow(
        self, id: str | None = None, *, keep: Seconds | None = KEEP_SECONDS, **settings: Unpack[FlowSettings]
    ) -> Flow:
        """Return a new, empty flow. Add jobs that wait for each other, and enqueue all of them together.

        - `id`: id of the flow, 1 to 480 bytes; default: a generated one, which sorts by time.
        - `keep`: seconds that the outcome of each node is kept at least, for its dependents and the status;
          None is for ever. Default 7 days.
        - `delay`, `run_at`, `priority`, `attributes`, `retention`, `request_key`: settings of the job that
          starts the flow, as those of `enqueue`.
        - `on_conflict`: Reject(...): how to treat an id that is known already. Default Reject(): a flow that
          runs or has completed stays, and one that failed or was cancelled is replaced.

        Raises ConfigurationError for an app without flows=True, Refused naming a bad setting.
        """
        from dibs.flow.builder import Flow  # noqa: PLC0415 - keeps `import dibs` fast

        return Flow(self._require_flows(), id, keep, settings)

    def chain(
        self,
        *calls: Bound[Any] | TaskEnqueuer[..., Any],
        id: str | None = None,
        keep: Seconds | None = KEEP_SECONDS,
        **settings: Unpack[FlowSettings],
    ) -> Chain:
        """Return calls that run one after the other, each with the result before it as its first argument.

        A call is a task, or made with `task.bind(...)`; each but the first leaves out the first argument. The
        settings are those of `flow`. Raises ConfigurationError for an app without flows=True, Refused.
        """
        from dibs.flow.chain import Chain  # noqa: PLC0415 - keeps `import dibs` fast

        return Chain(self.flow(id, keep=keep, **settings), calls)

    def get_flow(self, id: str) -> StoredFlow:
        """Return the flow with this id in the storage, to see its status, cancel it or retry it.

        Raises ConfigurationError for an app without flows=True, Refused for a bad id.
        """
        from dibs.flow.stored_flow import StoredFlow  # noqa: PLC0415 - keeps `import dibs` fast
        from dibs.model.check_values import check_text  # noqa: PLC0415 - the same

        check_text("id", id, 512)
        return StoredFlow(self._require_flows(), id)

    def batch(
        self,
        id: str | None = None,
        *,
        on_success: Bound[Any] | None = None,
        on_finish: Bound[Any] | None = None,
        on_first_failure: Bound[Any] | None = None,
        keep: Seconds | None = KEEP_SECONDS,
        open_for: Seconds = 3600.0,
        attributes: Mapping[str, Any] | None = None,
    ) -> Batch:
        """Return a new batch: any number of jobs, its *members*, with callbacks after their end.

        Use it as `async with app.batch(...) as batch:`, and add members with `await batch.enqueue_many(...)`.

        - `id`: id of the batch, 1 to 440 bytes; default: a generated one. An id that is live or has completed
          is joined: no new batch is made.
        - `on_success`: a job that is enqueued if all members have completed.
        - `on_finish`: a job that is enqueued after all members have ended, in any way.
        - `on_first_failure`: a job that is enqueued after the first member that does not complete.
        - `keep`: seconds that the outcomes of members, callbacks and the batch are kept at least; None is for
          ever. Default 7 days.
        - `open_for`: seconds without a new member after which a batch that nobody closes is closed. Default
          1 hour.
        - `attributes`: JSON values of the batch by name.

        Each callback is a job made with `task.bind(...)`, with retries of its own. Its attribute
        `dibs.summary` has the numbers of members. Raises ConfigurationError for an app without flows=True,
        Refused naming a bad setting.
        """
        from dibs.flow.batch.batch import Batch  # noqa: PLC0415 - keeps `import dibs` fast
        from dibs.flow.batch.callbacks import plan_callbacks  # noqa: PLC0415 - the same

        context = self._require_flows()
        given = {"on_success": on_success, "on_finish": on_finish, "on_first_failure": on_first_failure}
        callbacks = plan_callbacks(context, given)
        return Batch(context, id, callbacks, keep=keep, open_for=open_for, attributes=attributes)

    def get_batch(self, id: str | None = None) -> StoredBatch:
        """Return the batch with this id in the storage, to add members to it or to read its results.

        Default: in a handler, the batch of which the running job is a member or a callback. Raises
        ConfigurationError for an app without flows=True, and for a job that belongs to no batch; Refused for
        a bad id.
        """
        from dibs.flow.batch.stored_batch import StoredBatch, current_batch_id  # noqa: PLC0415 - see flow
        from dibs.model.check_values import check_text  # noqa: PLC0415 - the same

        id = current_batch_id() if id is None else id
        check_text("id", id, 512)
        return StoredBatch(self._require_flows(), id)
