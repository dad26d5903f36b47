"""The rates of a client and of a worker process with 0, 1 and 2 ms of network delay."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from attrs import define

from benchmarks.conditions.proxy import delayed_url
from benchmarks.peers.backends import Backend, ServerUsage
from benchmarks.peers.environments import Environment
from benchmarks.peers.measure import measure_peer
from benchmarks.peers.systems import PEERS, Peer

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

    def usage(self) -> ServerUsage | None:
        """Return the usage of the server without the proxy."""
        return self.backend.usage()


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
        result = measure_peer(peer, Environment(Path(), peer), delayed, jobs=jobs, latency_jobs=50)
    pickup = result.pickup_ms and round(result.pickup_ms[0], 2)
    return {
        "kind": kind, "added_ms": ms, "enqueue": result.enqueue, "drain": result.drain,
        "pickup_p50_ms": pickup,
    }  # fmt: skip
