"""One measurement of one peer. Each step of its program runs in a separate process."""

from __future__ import annotations

import json
import os
import subprocess
from statistics import quantiles
from typing import Any, Final

from attrs import define

from benchmarks.peers.backends import Backend, ServerUsage
from benchmarks.peers.environments import Environment, PeerUnavailable
from benchmarks.peers.systems import Peer

#: Seconds until a step is stopped and the peer counts as unavailable.
STEP_TIMEOUT: Final = 180
#: Jobs whose pick-up latency is measured.
LATENCY_JOBS: Final = 200
#: Jobs before them whose latency is ignored.
WARM_UP: Final = 20


@define(kw_only=True)
class Measurement:
    """The results of a peer in one round. None means: not measured."""

    #: Jobs a second.
    enqueue: float | None = None
    #: Jobs a second.
    drain: float | None = None
    #: CPU time of the worker for each job, in µs.
    worker_us: float | None = None
    #: Usage of the server for each job of the drain.
    server: ServerUsage | None = None
    #: p50 and p99 of the ms from an enqueue to its handler.
    pickup_ms: tuple[float, float] | None = None


def measure_peer(
    peer: Peer, environment: Environment, backend: Backend, *, jobs: int, latency_jobs: int
) -> Measurement:
    """Run all steps of the program. Raises PeerUnavailable if a step fails or times out."""
    result = Measurement()
    variables = _prepare(peer, environment, backend)
    if peer.kind != "memory":
        result.enqueue = jobs / _run(environment.command("enqueue", jobs), variables)["seconds"]
    before = backend.usage()
    drain = _run(environment.command("drain", jobs), variables)
    after = backend.usage()
    result.drain, result.worker_us = jobs / drain["seconds"], drain["cpu_us"]
    if before and after:
        result.server = after.per_job(before, jobs)
    if peer.multi_process:
        result.pickup_ms = _pickup(environment, _prepare(peer, environment, backend), latency_jobs)
    return result


def _prepare(peer: Peer, environment: Environment, backend: Backend) -> dict[str, str]:
    """Empty the backend, run the step `prepare`, and return the environment variables of the next step."""
    url = backend.reset()
    # In memory, the programs of other systems expect an empty PEER_URL.
    peer_url = "" if peer.kind == "memory" and peer.runtime != "dibs" else url
    variables = {**os.environ, "PEER_URL": peer_url, **dict(peer.environment)}
    if peer.prepares:
        _run(environment.command("prepare", 0), variables, has_result=False)
    return variables


def _run(command: list[str], variables: dict[str, str], *, has_result: bool = True) -> dict[str, Any]:
    """Run one step and return its result, the last line of JSON that it prints."""
    try:
        step = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=STEP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"{command[-2]} took more than {STEP_TIMEOUT} s") from None
    if not has_result and not step.returncode:
        return {}
    return _result(command[-2], step.stdout, step.stderr)


def _result(step: str, stdout: str, stderr: str) -> dict[str, Any]:
    for line in reversed(stdout.splitlines()):
        if line.startswith("{"):
            result: dict[str, Any] = json.loads(line)
            return result
    raise PeerUnavailable(
        f"{step} failed: {_error_line(stderr) or _error_line(stdout) or 'it printed no error'}"
    )


def _error_line(text: str) -> str:
    """Return the last line with "Error", which Node prints above its traceback, or else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")


def _pickup(environment: Environment, variables: dict[str, str], latency_jobs: int) -> tuple[float, float]:
    """Return p50 and p99 of the ms from an enqueue in one process to its handler in another."""
    count = WARM_UP + latency_jobs
    worker = subprocess.Popen(
        environment.command("receive", count),
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout
    try:
        for line in worker.stdout:
            if line.strip() == "ready":
                break
        _run(environment.command("send", count), variables, has_result=False)
        stdout, stderr = worker.communicate(timeout=STEP_TIMEOUT)
    except subprocess.TimeoutExpired:
        raise PeerUnavailable(f"receive took more than {STEP_TIMEOUT} s") from None
    finally:
        worker.kill()
    percentiles = quantiles(_result("receive", stdout, stderr)["ms"][WARM_UP:], n=100)
    return percentiles[49], percentiles[98]
