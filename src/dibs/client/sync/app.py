"""Blocking forms of async handles, whose modules are dibs.app.

Written by tools/make_blocking.py from the async modules: change those.
"""

# ruff: noqa: SLF001 - a blocking handle uses the private attributes of its async handle

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

from dibs.app import Dibs, Until
from dibs.client.calls.bound_job import Bound
from dibs.client.options.arguments import (
    DEFAULT_GRACE,
    DEFAULT_KEEP,
    DEFAULT_LEASE,
    DEFAULT_OPEN_FOR,
    DEFAULT_POLL,
    Seconds,
)
from dibs.client.options.serde import Serde
from dibs.client.sync.background_loop import (
    run,
    run_on_this_thread,
)
from dibs.client.sync.flow import (
    BlockingBatch,
    BlockingChain,
    BlockingFlow,
    BlockingStoredBatch,
    BlockingStoredFlow,
)
from dibs.client.sync.queue import BlockingQueue
from dibs.client.sync.task import BlockingTask
from dibs.client.task import TaskEnqueuer
from dibs.client.work_report import WorkReport
from dibs.client.worker_info import WorkerInfo
from dibs.flow.builder import FlowSettings


class BlockingDibs:
    """Blocking form of Dibs, returned by its property `sync`.

    A job queue at a storage URL: an app declares queues and tasks, enqueues jobs and runs workers.

    Without `url` the app uses $DIBS_URL, or else `url` under [tool.dibs] in the nearest pyproject.toml.
    `call_timeout` is the deadline of each call to the storage: seconds, text such as "5s", or a timedelta;
    None is no limit. After it the call raises StorageBusy if surely nothing was written, else OutcomeUnknown.
    Waits, feeds, receivers and workers have their own limits. `max_pending`: `enqueue` calls that may be
    pending at a time on an event loop; later ones wait. `flows`: True to use flows, chains and batches; the
    workers of the app then also serve the two queues of flows. `options` are passed to the storage.

    The storage opens at the first use, or with `with app`. After `close` every use raises NotRunning
    until the app is opened again.
    """

    def __init__(self, source: Dibs) -> None:
        self._source = source
        self._storage_handle = source._storage_handle

    def __repr__(self) -> str:
        return f"<Blocking{repr(self._source)[1:]}"

    @property
    def url(self) -> str:
        """The storage URL with its password; do not log or print it. Raises NoStorage if there is no URL."""
        return self._source.url

    def open(self) -> None:
        """Open the storage. Call `close` once for each `open`.

            app.open()
            try:
                send.enqueue("ada@example.org")
            finally:
                app.close()

        Raises NoStorage if no URL was given anywhere, StorageError if the storage cannot be opened.
        """
        return run(self._storage_handle, "await app.open(...)", self._source.open())

    def close(self) -> None:
        """Close the storage if every other `open` and `with` block has ended, too."""
        return run(self._storage_handle, "await app.close(...)", self._source.close())

    def __enter__(self) -> Self:
        run(self._storage_handle, "async with", self._source.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return run(self._storage_handle, "async with", self._source.__aexit__(kind, error, trace))

    def queue(self, name: str, *, serde: Serde | None = None) -> BlockingQueue:
        """Return the queue of this name.

            app.queue("mails").enqueue({"to": "ada@example.org"})

        `serde` encodes the data and results of the queue; the default is JSON. Pass it in the first call
        for a queue; later calls return a queue with the same serde.

        Raises Refused if the name is not allowed, ConfigurationError if the queue has another serde.
        """
        return BlockingQueue(self._source.queue(name, serde=serde))

    def queues(self) -> Sequence[BlockingQueue]:
        """Return the queues that the storage knows, also those of other apps and failure handlers.

            for queue in app.queues():
                print(queue.name, (queue.counts()).waiting)

        A queue is known once it was used or configured, and the list may lag behind (contract 3, queues).
        """
        return [
            BlockingQueue(one)
            for one in run(self._storage_handle, "await app.queues(...)", self._source.queues())
        ]

    def workers(self, *, runs: bool = False) -> Sequence[WorkerInfo]:
        """Return the workers that live, by name. `runs`: True also reads the active jobs of each.

            for worker in app.workers(runs=True):
                print(worker.name, [run.id for run in worker.runs])

        A worker is listed from a second after its start, and a dead one for at most three times its lease.
        """
        return run(self._storage_handle, "await app.workers(...)", self._source.workers(runs=runs))

    def get_task(self, name: str) -> BlockingTask[Any, Any]:
        """Return the task whose queue has this name. Raises UnknownTask, which lists the known tasks.

        Example: `app.get_task("send").enqueue("ada@example.org")`
        """
        return BlockingTask(self._source.get_task(name))

    def flow(
        self, id: str | None = None, *, keep: Seconds | None = DEFAULT_KEEP, **settings: Unpack[FlowSettings]
    ) -> BlockingFlow:
        """Return a new, empty flow. Add jobs that wait for each other, and enqueue all of them together.

            flow = app.flow("album-42")
            small = [flow.add(resize.bind(image)) for image in ("a.png", "b.png")]
            flow.add(send.bind("ada@example.org"), after=small)
            ticket = flow.enqueue()

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
        keep: Seconds | None = DEFAULT_KEEP,
        **settings: Unpack[FlowSettings],
    ) -> BlockingChain:
        """Return calls that run one after the other, each with the result before it as its first argument.

            ticket = app.chain(resize.bind("a.png"), send).enqueue()

        A call is a task, or made with `task.bind(...)`; each but the first leaves out the first argument. The
        settings are those of `flow`. Raises ConfigurationError for an app without flows=True, Refused.
        """
        return BlockingChain(self._source.chain(*calls, id=id, keep=keep, **settings))

    def get_flow(self, id: str) -> BlockingStoredFlow:
        """Return the flow with this id in the storage, to see its status, cancel it or retry it.

            status = app.get_flow("album-42").status()  # None for an unknown flow

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
        keep: Seconds | None = DEFAULT_KEEP,
        open_for: Seconds = DEFAULT_OPEN_FOR,
        attributes: Mapping[str, Any] | None = None,
    ) -> BlockingBatch:
        """Return a new batch: any number of jobs, its *members*, with callbacks after their end.

            with app.batch("mailing-7", on_finish=send.bind("boss@example.org")) as batch:
                batch.enqueue_many(send.bind(to) for to in ("ada@example.org", "bo@example.org"))

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

            app.get_batch("mailing-7").close()

        Default: in a handler, the batch of which the running job is a member or a callback. Raises
        ConfigurationError for an app without flows=True, and for a job that belongs to no batch; Refused for
        a bad id.
        """
        return BlockingStoredBatch(self._source.get_batch(id))

    def work(
        self,
        queues: Sequence[str] | None = None,
        processes: int | None = 0,
        until: Until = "stopped",
        grace: Seconds = DEFAULT_GRACE,
        *,
        lease: Seconds = DEFAULT_LEASE,
        heartbeat: Seconds | None = None,
        poll: Seconds = DEFAULT_POLL,
        name: str | None = None,
        max_runs: int | None = None,
        max_memory: float | None = None,
        handle_signals: bool = True,
    ) -> WorkReport:
        """Run jobs until the worker is stopped, and return a report of the runs.

            report = app.work(until="idle")
            print(report.total("completed"), report.total("failed"))

        - `queues`: names of the queues to serve; default: all queues that have a handler.
        - `processes`: number of worker processes; None: one per CPU; 0: jobs run in this process. Default 0.
        - `until`: "stopped" works until a stop signal, `stop` or cancellation; a cancelled call releases
          its jobs at once. "empty" returns when the queues have no waiting, scheduled, active or blocked
          job, so it waits for a job that is due tomorrow. "idle" returns when the queues have no due, active
          or blocked job; a retry that is due later stays. For both, paused queues, handed-off runs and the
          next ticks of periodic tasks do not count. Default "stopped".
        - `grace`: seconds that running jobs, and then the part of the lifespan after its yield, have to end
          after a stop; then the jobs are released. A second signal releases them at once. Default 30.
        - `lease`: seconds from the last heartbeat until the jobs return to the queue. Default 15.
        - `heartbeat`: seconds between two renewals of the lease; less than `lease`. Default: a third of it.
        - `poll`: seconds between two claims on an empty queue, so the longest delay after a lost
          notification. Default 1.
        - `name`: name of the worker, as in `Status.holder`. Default: "host:process id:random digits".
        - `max_runs`, `max_memory`: runs, and resident memory in MB (Linux only), after which a worker process
          claims no more, ends its runs and is replaced; None is no limit. Default None.
        - `handle_signals`: True stops this call at SIGTERM, SIGINT or SIGHUP. Meanwhile handlers that the
          program has set with signal.signal are not called, and a handler for SIGHUP stays in place. False
          leaves all signals to the program, which calls `stop`. Default True.

        Raises ConfigurationError if no handler is declared or a setting does not fit, UnknownTask for a
        queue without a handler, Refused for a name that is empty or too long, StorageError.
        """
        return run_on_this_thread(
            self._storage_handle,
            "await app.work(...)",
            self._source.work(
                queues,
                processes,
                until,
                grace,
                lease=lease,
                heartbeat=heartbeat,
                poll=poll,
                name=name,
                max_runs=max_runs,
                max_memory=max_memory,
                handle_signals=handle_signals,
            ),
        )

    def stop(self, grace: Seconds | None = None) -> None:
        """Stop all calls of `work` of this app in this process, as a signal does, and return at once.

            app.stop(grace=5)  # running jobs have 5 seconds to end

        Any thread may call it. `grace`: seconds that running jobs have to end; default: the `grace` of each
        `work`. A later call can only shorten this time: `stop(grace=0)` releases the jobs at once.
        """
        return self._source.stop(grace)
