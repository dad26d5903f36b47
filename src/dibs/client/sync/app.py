"""Blocking form of dibs.client.app.

Written by tools/make_blocking.py from the async module: change that one.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from dibs.client.app import Dibs, Until
from dibs.client.options.durations import DEFAULT_LEASE, Seconds
from dibs.client.options.serde import Serde
from dibs.client.sync.background_loop import run, run_on_this_thread
from dibs.client.sync.flow_calls import BlockingFlowCalls
from dibs.client.sync.queue import BlockingQueue
from dibs.client.sync.task import BlockingTask
from dibs.client.work_report import WorkReport
from dibs.client.worker_info import WorkerInfo


class BlockingDibs(BlockingFlowCalls):
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
        super().__init__(source)
        self._source: Dibs = source

    @property
    def url(self) -> str:
        """The storage URL with its password; do not log or print it. Raises NoStorage if there is no URL."""
        return self._source.url

    def open(self) -> None:
        """Open the storage. Call `close` once for each `open`.

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

        `serde` encodes the data and results of the queue; the default is JSON. Pass it in the first call
        for a queue; later calls return a queue with the same serde.

        Raises Refused if the name is not allowed, ConfigurationError if the queue has another serde.
        """
        return BlockingQueue(self._source.queue(name, serde=serde))

    def queues(self) -> Sequence[BlockingQueue]:
        """Return the queues that the storage knows, also those of other apps and failure handlers.

        A queue is known once it was used or configured, and the list may lag behind (contract 3, queues).
        """
        return [
            BlockingQueue(one)
            for one in run(self._storage_handle, "await app.queues(...)", self._source.queues())
        ]

    def workers(self, *, runs: bool = False) -> Sequence[WorkerInfo]:
        """Return the workers that live, by name. `runs`: True also reads the active jobs of each.

        A worker is listed from a second after its start, and a dead one for at most three times its lease.
        """
        return run(self._storage_handle, "await app.workers(...)", self._source.workers(runs=runs))

    def get_task(self, name: str) -> BlockingTask[Any, Any]:
        """Return the task whose queue has this name. Raises UnknownTask, which lists the known tasks."""
        return BlockingTask(self._source.get_task(name))

    def work(
        self,
        queues: Sequence[str] | None = None,
        processes: int | None = 0,
        until: Until = "stopped",
        grace: Seconds = 30.0,
        *,
        lease: Seconds = DEFAULT_LEASE,
        heartbeat: Seconds | None = None,
        poll: Seconds = 1.0,
        name: str | None = None,
        max_runs: int | None = None,
        max_memory: float | None = None,
        handle_signals: bool = True,
    ) -> WorkReport:
        """Run jobs until the worker is stopped, and return a report of the runs.

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

        Any thread may call it. `grace`: seconds that running jobs have to end; default: the `grace` of each
        `work`. A later call can only shorten this time: `stop(grace=0)` releases the jobs at once.
        """
        return self._source.stop(grace)
