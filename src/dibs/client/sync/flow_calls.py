"""Blocking form of dibs.flow.app_calls.

Written by tools/make_blocking.py from the async module: change that one.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

from dibs.client.calls.bound_job import Bound
from dibs.client.options.durations import Seconds
from dibs.client.sync.batch import BlockingBatch
from dibs.client.sync.flow_builder import BlockingFlow
from dibs.client.sync.flow_chain import BlockingChain
from dibs.client.sync.stored_batch import BlockingStoredBatch
from dibs.client.sync.stored_flow import BlockingStoredFlow
from dibs.client.task import TaskEnqueuer
from dibs.flow.app_calls import KEEP_SECONDS, FlowCalls
from dibs.flow.builder import FlowSettings


class BlockingFlowCalls:
    """Blocking form of FlowCalls, returned by its property `sync`.

    The methods of an app for flows. They need `Dibs(url, flows=True)`.
    """

    def __init__(self, source: FlowCalls) -> None:
        self._source = source
        self._storage_handle = source._storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    def flow(
        self, id: str | None = None, *, keep: Seconds | None = KEEP_SECONDS, **settings: Unpack[FlowSettings]
    ) -> BlockingFlow:
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
        return BlockingFlow(self._source.flow(id, keep=keep, **settings))

    def chain(
        self,
        *calls: Bound[Any] | TaskEnqueuer[..., Any],
        id: str | None = None,
        keep: Seconds | None = KEEP_SECONDS,
        **settings: Unpack[FlowSettings],
    ) -> BlockingChain:
        """Return calls that run one after the other, each with the result before it as its first argument.

        A call is a task, or made with `task.bind(...)`; each but the first leaves out the first argument. The
        settings are those of `flow`. Raises ConfigurationError for an app without flows=True, Refused.
        """
        return BlockingChain(self._source.chain(*calls, id=id, keep=keep, **settings))

    def get_flow(self, id: str) -> BlockingStoredFlow:
        """Return the flow with this id in the storage, to see its status, cancel it or retry it.

        Raises ConfigurationError for an app without flows=True, Refused for a bad id.
        """
        return BlockingStoredFlow(self._source.get_flow(id))

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
    ) -> BlockingBatch:
        """Return a new batch: any number of jobs, its *members*, with callbacks after their end.

        Use it as `with app.batch(...) as batch:`, and add members with `batch.enqueue_many(...)`.

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
        return BlockingBatch(
            self._source.batch(
                id,
                on_success=on_success,
                on_finish=on_finish,
                on_first_failure=on_first_failure,
                keep=keep,
                open_for=open_for,
                attributes=attributes,
            )
        )

    def get_batch(self, id: str | None = None) -> BlockingStoredBatch:
        """Return the batch with this id in the storage, to add members to it or to read its results.

        Default: in a handler, the batch of which the running job is a member or a callback. Raises
        ConfigurationError for an app without flows=True, and for a job that belongs to no batch; Refused for
        a bad id.
        """
        return BlockingStoredBatch(self._source.get_batch(id))
