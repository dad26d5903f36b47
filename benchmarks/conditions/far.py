"""The rates of a client and of a worker process whose server is 0, 1 or 2 ms further away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.conditions.proxy import further
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.grounds import Cost, Ground
from benchmarks.peers.homes import Home
from benchmarks.peers.race import take

#: All go through the proxy, the first as well: what the proxy itself costs is in each.
ADDED_MS: Final = (0, 1, 2)
KINDS: Final = ("redis", "postgresql")


class Behind:
    """A ground seen through proxies, which end with the stack."""

    def __init__(self, ground: Ground, ms: float, stack: ExitStack) -> None:
        self._ground = ground
        self._ms = ms
        self._stack = stack

    def empty(self) -> str:
        """Empty the ground and return its URL behind a proxy."""
        return self._stack.enter_context(further(self._ground.empty(), self._ms))

    def cost(self) -> Cost | None:
        """Return what the server says."""
        return self._ground.cost()


def ours(kind: str) -> Peer:
    """Return dibs without outcomes of completed jobs."""
    return next(peer for peer in PEERS if peer.kind == kind and peer.runtime == "ours")


def measure(by_kind: dict[str, Ground], *, jobs: int, told: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return a row for each server and distance."""
    return [_row(kind, by_kind[kind], ms, jobs, told) for kind in KINDS for ms in ADDED_MS]


def _row(kind: str, ground: Ground, ms: int, jobs: int, told: Callable[[str], None]) -> dict[str, Any]:
    told(f"{kind}, {ms} ms further away")
    peer = ours(kind)
    with ExitStack() as stack:
        turn = take(peer, Home(Path(), peer), Behind(ground, ms, stack), jobs=jobs, calls=50)
    pickup = turn.pickup_ms and round(turn.pickup_ms[0], 2)
    return {
        "kind": kind, "added_ms": ms, "enqueue": turn.enqueue, "drain": turn.drain, "pickup_p50_ms": pickup,
    }  # fmt: skip
