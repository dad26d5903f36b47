"""One turn of one peer: its program enqueues, drains and answers, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
from statistics import quantiles
from typing import Any, Final

from msgspec import Struct

from benchmarks.peers.catalogue import Peer
from benchmarks.peers.grounds import Cost, Ground
from benchmarks.peers.homes import Home, NotRun

#: Seconds that any step may take before the peer is given up.
PATIENCE: Final = 180
#: Jobs whose pick-up is timed in a turn, and those before them that are not.
CALLS: Final = 200
WARM_UP: Final = 20


class Turn(Struct, kw_only=True):
    """What a peer did in one round; None is not measured."""

    enqueue: float | None = None
    drain: float | None = None
    worker_us: float | None = None
    server: Cost | None = None
    pickup_ms: tuple[float, float] | None = None


def take(peer: Peer, home: Home, ground: Ground, *, jobs: int, calls: int) -> Turn:
    """Run the steps of one turn. Raises NotRun when a program fails or takes too long."""
    turn = Turn()
    environment = _environment(peer, home, ground)
    if peer.kind != "memory":
        turn.enqueue = jobs / _run(home.command("put", jobs), environment)["seconds"]
    before = ground.cost()
    found = _run(home.command("drain", jobs), environment)
    after = ground.cost()
    turn.drain, turn.worker_us = jobs / found["seconds"], found["cpu_us"]
    if before and after:
        turn.server = after.since(before, jobs)
    if peer.shares:
        turn.pickup_ms = _pickup(home, _environment(peer, home, ground), calls)
    return turn


def _environment(peer: Peer, home: Home, ground: Ground) -> dict[str, str]:
    """Empty the ground and return what the programs of the next step are told."""
    url = ground.empty()
    told = "" if peer.kind == "memory" and peer.runtime != "ours" else url
    environment = {**os.environ, "PEER_URL": told, **dict(peer.settings)}
    if peer.prepares:
        _run(home.command("prepare", 0), environment, answers=False)
    return environment


def _run(command: list[str], environment: dict[str, str], *, answers: bool = True) -> dict[str, Any]:
    """Return what a program tells on the last line it prints."""
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotRun(f"{command[-2]} took more than {PATIENCE} s") from None
    if not answers and not done.returncode:
        return {}
    return _told(command[-2], done.stdout, done.stderr)


def _told(verb: str, out: str, errors: str) -> dict[str, Any]:
    for line in reversed(out.splitlines()):
        if line.startswith("{"):
            found: dict[str, Any] = json.loads(line)
            return found
    raise NotRun(f"{verb} failed: {_complaint(errors) or _complaint(out) or 'it said nothing'}")


def _complaint(text: str) -> str:
    """Return the line that says what is wrong: Python's last, the one that names an error on Node."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")


def _pickup(home: Home, environment: dict[str, str], calls: int) -> tuple[float, float]:
    """Return p50 and p99 of the ms from an enqueue in one process to its handler in another."""
    count = WARM_UP + calls
    worker = subprocess.Popen(
        home.command("answer", count),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout
    try:
        for line in worker.stdout:
            if line.strip() == "ready":
                break
        _run(home.command("ask", count), environment, answers=False)
        out, errors = worker.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        raise NotRun(f"answer took more than {PATIENCE} s") from None
    finally:
        worker.kill()
    cuts = quantiles(_told("answer", out, errors)["ms"][WARM_UP:], n=100)
    return cuts[49], cuts[98]
