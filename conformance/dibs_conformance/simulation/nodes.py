"""The simulated machines: workers with their supervisor, and programs that enqueue.

A worker is the product's own `run` with child processes. Only what the operating system does is simulated:
the fork server, the pipes between supervisor and worker process, and the exit of a process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from attrs import define, frozen
from msgspec import Struct

from dibs import Dibs
from dibs.client.work_report import StopRequest, StopRequests
from dibs.errors import OutcomeUnknown, StorageError
from dibs.storage.protocol import Storage
from dibs.worker import messages, run
from dibs.worker.dispatch.in_flight import MAX_IN_FLIGHT
from dibs.worker.processes.child_main import ProcessSpec, run_then_cancel_tasks
from dibs.worker.processes.child_process import describe_exit
from dibs.worker.processes.worker_main import run_worker
from dibs_conformance.simulation.network import Link, RemoteStorage
from dibs_conformance.simulation.server import StorageServer
from dibs_conformance.simulation.world import Process, SimulatedTask, World

#: Makes the application of a process, with its tasks.
AppFactory = Callable[[Process], Dibs]
#: Seconds until a forked process runs, until a message has crossed a pipe, and until an exit is noticed.
FORK: Final = (0.02, 0.3)
PIPE: Final = (0.0001, 0.02)
#: Seconds that a worker may take beyond its grace: to release its runs, and to drop its leases.
STOP_SECONDS: Final = 60.0
#: The coroutine that runs a handler.
HANDLER: Final = "Executor._run_async_handler"


class Machine:
    """One machine with one main program: it starts, may be killed, and starts again."""

    def __init__(self, world: World, server: StorageServer, name: str, make_app: AppFactory) -> None:
        self.world, self.server, self.name = world, server, name
        self.link = Link()
        self._make_app = make_app
        #: The processes that live, the main process first.
        self.processes: list[Process] = []
        self.starts = 0
        #: True once the program must not start again.
        self.finished = False

    @property
    def alive(self) -> bool:
        return bool(self.processes)

    def new_process(self, name: str) -> tuple[Process, Dibs]:
        """Return a new process of this machine, and its application at the far storage."""
        process = Process(self.world, name)
        self.processes.append(process)
        self.server.links[name] = self.link
        app = self._make_app(process)
        storage = cast("Storage", RemoteStorage(self.server, process, self.link))
        # Left when the process object goes: the application ends with its process.
        process.stack.enter_context(app.override_storage(storage))
        return process, app

    def start(self) -> None:
        """Start the main program."""
        self.starts += 1
        process, app = self.new_process(f"{self.name}.{self.starts}")
        process.crash = self.kill
        process.start(self.main(process, app), lambda task: self._on_end(process, task))

    def main(self, process: Process, app: Dibs) -> Coroutine[Any, Any, None]:
        raise NotImplementedError

    def _on_end(self, process: Process, task: SimulatedTask) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and (process.has_opened or not isinstance(error, StorageError | OutcomeUnknown)):
            self.world.fail("a program ends without an error", f"{process.name} raised {error!r}")
        # In a supervisor without processes, a handler that ignores its cancellation ends with the program.
        if names := [name for name in task_names(process) if name != HANDLER]:
            self.world.fail("every task ends at shutdown", f"{process.name} left {', '.join(names)}")
        self.remove(process)

    def remove(self, process: Process) -> None:
        """End a process that has returned or was killed, and its children if it was the main process."""
        if process not in self.processes:
            return
        is_main = self.processes[0] is process
        for one in list(self.processes) if is_main else [process]:
            one.kill()
            self.processes.remove(one)

    def kill(self) -> None:
        """Cut the power: no process of the machine does anything more."""
        if self.processes:
            self.remove(self.processes[0])

    def freeze(self, seconds: float) -> None:
        for process in self.processes:
            process.freeze(seconds)


@frozen(kw_only=True)
class WorkerSettings:
    """The arguments of `run` for one worker machine."""

    processes: int
    lease: float
    poll: float
    grace: float


class WorkerMachine(Machine):
    """A machine that runs `dibs worker`."""

    def __init__(
        self, world: World, server: StorageServer, name: str, make_app: AppFactory, settings: WorkerSettings
    ) -> None:
        super().__init__(world, server, name, make_app)
        self.settings = settings
        self._stop: StopRequests | None = None
        self.stopping = False
        #: The number of audits in a row in which a process was missing.
        self.incomplete = 0

    async def main(self, process: Process, app: Dibs) -> None:
        self.stopping, self._stop = False, StopRequests()
        own = self.settings
        await run(
            app,
            processes=own.processes,
            lease=own.lease,
            poll=own.poll,
            grace=own.grace,
            name=process.name,
            reference="simulated:app",
            fork_server=cast("Any", SimulatedForkServer(self, process)) if own.processes else None,
            handle_signals=False,
            stop_requests=self._stop,
        )

    def stop(self) -> None:
        """Stop the worker as SIGTERM does. It must have ended after its grace and STOP_SECONDS."""
        if self.stopping or not self.alive or self._stop is None:
            return
        self.stopping = True
        process = self.processes[0]
        process.post(self._stop.put, StopRequest())
        self.world.call_in(self.settings.grace + STOP_SECONDS, self._check_stopped, process)

    def _check_stopped(self, process: Process) -> None:
        if process.dead:
            return
        late = process.frozen_until - self.world.now
        if late > 0:  # the time of a freeze does not count
            self.world.call_at(process.frozen_until + late, self._check_stopped, process)
            return
        names = ", ".join(task_names(process))
        self.world.fail(
            "every task ends at shutdown",
            f"{process.name} runs {STOP_SECONDS:g} s after its grace of {self.settings.grace:g} s: {names}",
        )


def task_names(process: Process) -> list[str]:
    """Return the names of the coroutines of all tasks of a process, sorted."""
    return sorted(str(getattr(task.get_coro(), "__qualname__", task)) for task in process.tasks())


class SimulatedForkServer:
    """In the place of the fork server of a supervisor: it starts simulated processes."""

    def __init__(self, machine: WorkerMachine, supervisor: Process) -> None:
        self._machine, self._supervisor = machine, supervisor
        self._forks = 0

    def preload(self, scheme: str) -> None:
        """Import nothing: all modules are there."""

    def close(self) -> None:
        """Leave the end of the children to the end of the supervisor."""

    def fork(
        self, spec: ProcessSpec, on_message: Callable[[bytes], None], on_exit: Callable[[str], None]
    ) -> SimulatedChild:
        self._forks += 1
        child = SimulatedChild(self._machine, self._supervisor, self._forks, spec, on_message, on_exit)
        self._machine.world.call_in(self._machine.world.random.uniform(*FORK), child.begin)
        return child


class SimulatedChild:
    """Both ends of a worker process: the handle of its supervisor, and the process with its pipe.

    The supervisor's side has the attributes and methods of ChildProcess.
    """

    may_wait: bool = False

    def __init__(
        self,
        machine: WorkerMachine,
        supervisor: Process,
        number: int,
        spec: ProcessSpec,
        on_message: Callable[[bytes], None],
        on_exit: Callable[[str], None],
    ) -> None:
        self._machine, self._world, self._supervisor = machine, machine.world, supervisor
        self._spec, self._number = spec, number
        self._on_message, self._on_exit = on_message, on_exit
        self.started: list[float] = [0.0] * MAX_IN_FLIGHT
        self.pid = 0
        self.exit_code: int | None = None
        self.alive = True
        self._process: Process | None = None
        self._has_ended = False
        #: Messages that were written and not read: those of the child, and those of the supervisor.
        self._to_parent: deque[bytes] = deque()
        self._to_child: deque[bytes] = deque()
        #: Called in the child with each message; None until it reads.
        self._receive: Callable[[bytes], None] | None = None

    # -- the supervisor's side -----------------------------------------------------------------------

    def send(self, message: bytes) -> None:
        if self.alive:
            self._to_child.append(message)
            self._world.call_in(self._world.random.uniform(*PIPE), self._wake_child)

    def read_waiting(self) -> None:
        while self.alive and self._to_parent:
            self._on_message(self._to_parent.popleft())

    def kill(self) -> None:
        self.end(-9)

    def _notice_exit(self, code: int) -> None:
        while self._to_parent:
            self._on_message(self._to_parent.popleft())
        self.alive, self.exit_code = False, code
        self._on_exit(describe_exit(code))

    # -- the child's side: the methods of ParentPipe -------------------------------------------------

    def begin(self) -> None:
        """Run the worker process, unless it was killed before it was forked."""
        if self._supervisor.dead or self._has_ended:
            return
        name = f"{self._supervisor.name}/{self._number}"
        self._process, app = self._machine.new_process(name)
        self._process.crash = self.kill
        parent = cast("Any", _ParentPipe(self))
        work = run_worker(parent, self._spec, app, self.started)
        self._process.start(run_then_cancel_tasks(work), self._on_return)

    def _on_return(self, task: SimulatedTask) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._world.fail("a program ends without an error", f"{self._process} raised {error!r}")
        self.end(0)

    def end(self, code: int) -> None:
        """End the process, and tell the supervisor soon."""
        if self._has_ended:
            return
        self._has_ended = True
        if self._process is not None:
            self._machine.remove(self._process)
        seconds = self._world.random.uniform(*PIPE)
        self._world.call_in(seconds, self._supervisor.post, self._notice_exit, code)

    def write(self, message: Struct) -> None:
        """Write a message of the child into the pipe."""
        if self._process is not None and not self._process.dead:
            self._to_parent.append(messages.encode(message))
            delay = self._world.random.uniform(*PIPE)
            self._world.call_in(delay, self._supervisor.post, self.read_waiting)

    def read(self, receive: Callable[[bytes], None]) -> None:
        """Begin to read in the child."""
        self._receive = receive
        self._wake_child()

    def _wake_child(self) -> None:
        if self._process is not None and self._receive is not None and self._to_child:
            self._process.post(self._read_all)

    def _read_all(self) -> None:
        while self._to_child and self._receive is not None:
            self._receive(self._to_child.popleft())


@define
class _ParentPipe:
    """The pipe of a worker process to its supervisor, with the methods of ParentPipe."""

    _child: SimulatedChild

    def send(self, message: Struct) -> None:
        self._child.write(message)

    def start_reading(self, loop: asyncio.AbstractEventLoop, on_message: Callable[[bytes], None]) -> None:
        self._child.read(on_message)
