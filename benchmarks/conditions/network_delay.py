"""The rates of a client and of a worker process with 0, 1 and 2 ms of network delay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import define

from benchmarks.conditions.proxy import delayed_url
from benchmarks.peers.backends import Backend
from benchmarks.peers.environments import Environment
from benchmarks.peers.measure import Effort, Run
from benchmarks.peers.systems import PEERS, Peer
from benchmarks.peers.usage import Usage

#: All rows use the proxy, also that with 0 ms, so that the cost of the proxy is the same in each.
ADDED_MS: Final = (0, 1, 2)
KINDS: Final = ("redis", "postgresql")


@define
class DelayedBackend:
    """A backend behind delay proxies. `stack` stops the proxies."""

    backend: Backend
    ms: float
    stack: ExitStack

    def reset(self) -> str:
        """Empty the backend and return its URL behind a new proxy."""
        return self.stack.enter_context(delayed_url(self.backend.reset(), self.ms))

    def usage(self) -> Usage | None:
        """Return the usage of the server without the proxy."""
        return self.backend.usage()

    def size(self, *, compact: bool = False) -> int | None:
        return self.backend.size(compact=compact)

    def left(self, expressions: tuple[str, ...], queues: list[str]) -> bool:
        return self.backend.left(expressions, queues)


def dibs_peer(kind: str) -> Peer:
    """Return dibs without outcomes of completed jobs."""
    return next(peer for peer in PEERS if peer.kind == kind and peer.runtime == "dibs")


def measure(
    by_kind: dict[str, Backend], *, jobs: int, show_step: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Return a row for each server and delay."""
    return [_row(kind, by_kind[kind], ms, jobs, show_step) for kind in KINDS for ms in ADDED_MS]


def _row(kind: str, backend: Backend, ms: int, jobs: int, show_step: Callable[[str], None]) -> dict[str, Any]:
    show_step(f"{kind}, {ms} ms of delay")
    peer = dibs_peer(kind)
    with ExitStack() as stack:
        delayed = DelayedBackend(backend, ms, stack)
        effort = Effort(jobs=jobs / peer.line, latency_jobs=50)
        run = Run(peer, Environment(Path(), peer), delayed, effort)
        figures = run.enqueue()
        variables = run.prepare()
        figures |= run.pickup(variables) | run.drain(variables, jobs)
    return {
        "kind": kind,
        "added_ms": ms,
        "enqueue": round(figures["enqueue_jobs"] / figures["enqueue_seconds"]),
        "drain": round(figures["drain_jobs"] / figures["drain_seconds"]),
        "pickup_p50_ms": round(figures["pickup_ms"][0], 2),
    }
