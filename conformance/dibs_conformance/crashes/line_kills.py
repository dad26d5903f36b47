"""Tests that kill or stop a client at a line of storage code, or at a system call on its files.

strace injects the kills and the errors of system calls, so these tests cover the calls of Python code and of
libraries in C, for example SQLite.
"""

from __future__ import annotations

import re
import select
import shutil
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from attrs import define, field, frozen

from dibs_conformance.concurrent.process_clients import ProcessClient, SignalPoint
from dibs_conformance.crashes.scenes import (
    RECOVERY_ACTIONS,
    SCENES,
    TIMEOUT,
    FaultCampaign,
    FaultHistory,
    ThreadSurvivor,
    Victim,
    min_points,
    points,
    thread_survivor,
)
from dibs_conformance.report import Findings, LawFailure, SkippedTest
from dibs_conformance.report.values import merge_findings
from dibs_conformance.target import LevelPlan
from dibs_conformance.verbs.actions import ClientCall

#: Seconds without an answer after which a call counts as blocked by the stopped process.
BLOCKED_AFTER = 0.2

#: The name of a scene, and the number of the line.
KillPoint = tuple[str, int]

KILLED = (
    "a killed caller leaves nothing half done",
    "A call killed at any line takes effect completely or not at all, and other clients keep working.",
    "kill -9",
)
STOPPED = (
    "a late holder changes nothing",
    "A process stopped at any line and continued after its lease does no harm to the new holders.",
    "stop and continue",
)


@frozen
class LineKiller:
    """The runner of scenes in a victim process that is killed or stopped at a line of storage code."""

    _victim: Victim
    _survivor: ThreadSurvivor

    def sizes(self, campaign: FaultCampaign[KillPoint]) -> dict[str, int]:
        """Return the number of storage lines that each scene executes.

        Each scene runs twice, and the second run is counted.
        """
        found: dict[str, int] = {}
        for name, scene in (*SCENES.items(), *SCENES.items()):
            history = campaign.new_history()
            victim = self._victim.process()
            victim.start(history.run_setup(scene))
            history.add(victim.wait())
            history.finish()
            campaign.check(history)
            found[name] = victim.stats.lines
        return found

    def kill(self, campaign: FaultCampaign[KillPoint], point: KillPoint) -> None:
        """Kill the victim at a line, run the recovery actions in the survivor, and check the history."""
        name, line = point
        history, victim = campaign.new_history(), self._victim.process()
        victim.start(history.run_setup(SCENES[name]), SignalPoint(signal.SIGKILL, line))
        calls = victim.wait()
        if victim.died:
            campaign.count_fault()
            self._victim.discard()
        history.add(calls)
        history.finish()
        campaign.check(history)

    def stop(self, campaign: FaultCampaign[KillPoint], point: KillPoint) -> None:
        """Stop the victim at a line, and continue it after its lease has expired.

        In between, the survivor takes over the victim's jobs.
        """
        name, line = point
        history, victim = campaign.new_history(), self._victim.process()
        victim.start(history.run_setup(SCENES[name]), SignalPoint(signal.SIGSTOP, line))
        stopped = self._is_stopped(victim)
        on_time = self._survivor.run(history.program(RECOVERY_ACTIONS), BLOCKED_AFTER if stopped else TIMEOUT)
        victim.resume()
        others = self._survivor.wait_late() if on_time is None else on_time
        if stopped:
            campaign.count_fault()
            campaign.count_fault("stopped, and the others waited" if on_time is None else "zombie")
        history.add([*victim.wait(), *others])
        history.finish()
        campaign.check(history)

    def _is_stopped(self, victim: ProcessClient) -> bool:
        """Wait until the process is stopped or has finished. Return whether it is stopped."""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if victim.is_stopped:
                return True
            if victim.has_finished(0.002):
                return False
        raise TimeoutError("the client process neither stopped nor answered")


def try_kills_and_stops(plan: LevelPlan, until: float) -> Findings:
    """Send SIGKILL before any line, then SIGSTOP before any line with SIGCONT after a takeover."""
    location, now = plan.locations.new(), time.monotonic()
    with thread_survivor(plan.locations, location) as survivor:
        kills: FaultCampaign[KillPoint] = FaultCampaign(
            *KILLED, survivor, "killed", plan.seed, min_points=min_points(plan)
        )
        stops: FaultCampaign[KillPoint] = FaultCampaign(
            *STOPPED, survivor, "stopped", plan.seed, min_points=min_points(plan)
        )
        victim = Victim(plan, location)
        killer = LineKiller(victim, survivor)
        try:
            kill_points = list(points(killer.sizes(kills)))
            kills.run(kill_points, lambda point: killer.kill(kills, point), (now + until) / 2)
            if kills.failure is None:
                stops.run(kill_points, lambda point: killer.stop(stops, point), until)
        finally:
            victim.discard()
        return merge_findings(kills.findings(), stops.findings())


#: System calls on files. strace ignores a name unknown to this kernel, because of its "?".
TRACED_CALLS: Final = (
    *("open", "openat", "creat", "read", "pread64", "readv", "preadv", "write", "pwrite64", "writev"),
    *("pwritev", "fsync", "fdatasync", "sync_file_range", "fallocate", "ftruncate", "truncate", "close"),
    *("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir"),
    *("fcntl", "flock", "getdents64", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "mmap"),
    *("symlink", "symlinkat", "chmod", "fchmod", "fchmodat", "utimensat"),
)
_LINE = re.compile(r"^(?P<thread>\d+) +(?P<name>\w+)\(")


@frozen
class SystemCall:
    """The n-th call of this name in a thread: the main thread of the process, or another."""

    name: str
    number: int
    first: bool


class StraceUnavailable(Exception):
    """strace is not installed, or may not trace."""


@define
class Trace:
    """The output of strace. It is complete after the tracing has ended."""

    process: int
    lines: list[str] = field(factory=list)

    def calls_below(self, path: str) -> list[SystemCall]:
        """Return the traced calls whose line names a file below `path`."""
        made: Counter[tuple[str, str]] = Counter()
        found = []
        for line in self.lines:
            match = _LINE.match(line)
            if match is None:
                continue
            made[match["thread"], match["name"]] += 1
            if path in line:
                number = made[match["thread"], match["name"]]
                found.append(SystemCall(match["name"], number, int(match["thread"]) == self.process))
        return found

    @property
    def injected(self) -> bool:
        return any("(INJECTED)" in line for line in self.lines)


@contextmanager
def trace_process(process: int, call: SystemCall | None = None, *options: str) -> Iterator[Trace]:
    """Trace a process while the context lasts. With `call`, trace only the threads that may make it.

    Raises StraceUnavailable.

    strace counts the calls of each thread separately. An injection for a thread of the storage must not
    hit the main thread, which talks to the parent.
    """
    strace = shutil.which("strace")
    if strace is None:
        raise StraceUnavailable("strace is not installed")
    names = ",".join(f"?{name}" for name in TRACED_CALLS)
    targets = [f"--attach={thread}" for thread in threads_to_attach(process, call)]
    with TemporaryDirectory() as folder:
        trace, log = Trace(process), Path(folder, "log")
        follow = ["-f"] if call is None else []
        output = ["-y", "-s", "256", "-o", str(log), "-e", f"trace={names}"]
        command = [strace, *follow, *output, *targets, *options]
        tracer = subprocess.Popen(command, stderr=subprocess.PIPE)
        try:
            wait_attached(tracer, len(targets))
            yield trace
        finally:
            tracer.terminate()
            tracer.communicate(timeout=TIMEOUT)
            trace.lines += log.read_text("utf-8", "replace").splitlines() if log.exists() else []


def threads_to_attach(process: int, call: SystemCall | None) -> list[int]:
    """Return the ids of the threads to attach to. From the main thread, strace follows the others."""
    if call is None or call.first:
        return [process]
    return [int(task.name) for task in Path(f"/proc/{process}/task").iterdir() if int(task.name) != process]


def wait_attached(tracer: subprocess.Popen[bytes], times: int) -> None:
    """Read the output of strace until it has attached to this number of threads."""
    assert tracer.stderr is not None  # noqa: S101 - Popen got stderr=PIPE
    output, deadline = b"", time.monotonic() + TIMEOUT
    while output.count(b"attached") < times:
        ready, _, _ = select.select([tracer.stderr], [], [], max(0.0, deadline - time.monotonic()))
        more = tracer.stderr.read1() if ready else b""  # type: ignore[attr-defined]
        if not more:
            raise StraceUnavailable(f"strace cannot trace here: {output.decode('utf-8', 'replace').strip()}")
        output += more


def injection_options(call: SystemCall, effect: str) -> Sequence[str]:
    """Return the strace options that apply an effect to one system call.

    `signal=KILL` kills the process before the call. `error=EIO` fails the call without making it.
    """
    return "-e", f"inject={call.name}:{effect}:when={call.number}"


#: The name of a scene, the system call, and the name of the error; "" for a kill.
CallPoint = tuple[str, SystemCall, str]

#: EINTR matters for code in C. Python itself repeats interrupted calls (PEP 475).
ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EMFILE", "EINTR")

CALL_KILLED = (
    "a caller killed at a system call leaves nothing half done",
    "A call killed at any system call on files takes effect completely or not at all.",
    "kill -9 at a system call",
)
FAILED = (
    "a system call that fails is told and leaves nothing half done",
    "After any failed system call on files, calls report truthfully and later calls work.",
    "system call failed",
)


@frozen
class SystemCallKiller:
    """The runner of scenes in a process under strace."""

    _victim: Victim
    _folder: str

    def points(self, campaign: FaultCampaign[CallPoint], errors: Sequence[str]) -> list[CallPoint]:
        """Return every system call below the folder, in every scene without faults, with each error."""
        found: list[CallPoint] = []
        for name in SCENES:
            history = campaign.new_history()
            calls = self._run_scene(history, name).calls_below(self._folder)
            self._recover(campaign, history)
            found += [(name, call, error) for call in dict.fromkeys(calls) for error in errors]
        return found

    def kill(self, campaign: FaultCampaign[CallPoint], point: CallPoint) -> None:
        name, call, _ = point
        history = campaign.new_history()
        self._run_scene(history, name, call, "signal=KILL")
        if self._victim.died:
            campaign.count_fault()
            self._victim.discard()
        self._recover(campaign, history)

    def fail(self, campaign: FaultCampaign[CallPoint], point: CallPoint) -> None:
        name, call, error = point
        history = campaign.new_history()
        if self._run_scene(history, name, call, f"error={error}").injected:
            campaign.count_fault()
            campaign.count_fault(f"{error} at {call.name}")
        if self._victim.died:
            self._victim.discard()
        for late in self._recover(campaign, history):
            if late.completion != "answered":
                told = f"{late.operation} was {late.completion}: {late.answer}"
                why = f"{name}: after {error} at {call.name}, {told}"
                campaign.failure = campaign.failure or LawFailure(law=campaign.law, why=why)

    def _run_scene(
        self, history: FaultHistory, name: str, call: SystemCall | None = None, effect: str = ""
    ) -> Trace:
        """Run a scene under strace. `effect` changes one system call."""
        program, victim = history.run_setup(SCENES[name]), self._victim.process()
        with trace_process(victim.pid, call, *(injection_options(call, effect) if call else ())) as trace:
            victim.start(program)
            history.add(victim.wait())
        return trace

    def _recover(self, campaign: FaultCampaign[CallPoint], history: FaultHistory) -> list[ClientCall]:
        """Run the recovery actions in the victim, if it is alive, and in the survivor. Check the history.

        Return the calls of the victim.
        """
        calls: list[ClientCall] = []
        if self._victim.is_running:
            victim = self._victim.process()
            victim.start(history.program(RECOVERY_ACTIONS))
            calls = victim.wait()
            history.add(calls)
        history.finish()
        campaign.check(history)
        return calls


def try_system_call_kills(plan: LevelPlan, until: float) -> Findings:
    """Kill the victim at each system call. Then make each system call fail with each of ERRORS."""
    location, now = plan.locations.new(), time.monotonic()
    with thread_survivor(plan.locations, location) as survivor:
        kills, fails = (
            campaign_for(CALL_KILLED, survivor, "at a call", plan),
            campaign_for(FAILED, survivor, "failed call", plan),
        )
        victim = Victim(plan, location)
        killer = SystemCallKiller(victim, folder_of(survivor))
        try:
            points = killer.points(kills, ERRORS)
            kill_points = [(name, call, "") for name, call, error in points if error == ERRORS[0]]
            kills.run(kill_points, lambda point: killer.kill(kills, point), (now + until) / 2)
            if kills.failure is None:
                fails.run(points, lambda point: killer.fail(fails, point), until)
        except StraceUnavailable as error:
            gap = SkippedTest(name="kill -9 and errors at every system call", why=str(error))
            return Findings(untested=(gap,))
        finally:
            victim.discard()
        return merge_findings(kills.findings(), fails.findings())


def campaign_for(
    texts: tuple[str, str, str], survivor: ThreadSurvivor, queue_prefix: str, plan: LevelPlan
) -> FaultCampaign[CallPoint]:
    """Return a campaign with fewer points to test at least, because strace is slow.

    It tests `plan.examples` points, or one per scene if that is not set, and more if there is time.
    """
    return FaultCampaign(*texts, survivor, queue_prefix, plan.seed, min_points=plan.examples or len(SCENES))


def folder_of(survivor: ThreadSurvivor) -> str:
    """Return the path of the storage's files."""
    return survivor.client.storage.url.partition(":")[2].partition("?")[0]
