"""Race dibs against its peers: `python -m benchmarks.peers [NAME ...] [--rounds N] [--quick] [--json FILE]`.

All systems take a turn in each round, so that what a shared machine does to one it does to all: read the
ratios. The yardstick stands first in each round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.peers import table, yardstick
from benchmarks.peers.catalogue import PEERS, Peer
from benchmarks.peers.grounds import Ground, grounds
from benchmarks.peers.homes import Home, NotRun
from benchmarks.peers.race import CALLS, Turn, take
from dibs.cli import output

HOMES: Final = Path(".bench-peers")
#: By kind and name: the turns of all rounds, or why there are none.
Turns = dict[tuple[str, str], list[Turn]]
Reasons = dict[tuple[str, str], str]


def race(
    peers: list[Peer], by_kind: dict[str, Ground], *, rounds: int, quick: bool
) -> tuple[Turns, Reasons, list[dict[str, float]]]:
    """Run all rounds; a peer that fails once is out, with the reason."""
    turns: Turns = {}
    out: Reasons = {}
    bare = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("racing", total=rounds * len(peers))
        for _ in range(rounds):
            bare.append(asyncio.run(yardstick.measure(by_kind)))
            for peer in peers:
                progress.update(bar, advance=1, description=f"{peer.name} ({peer.kind})")
                _take_turn(peer, by_kind[peer.kind], turns, out, quick=quick)
    return turns, out, bare


def _take_turn(peer: Peer, ground: Ground, turns: Turns, out: Reasons, *, quick: bool) -> None:
    who = (peer.kind, peer.name)
    if who in out:
        return
    jobs, calls = (peer.jobs // 5, 50) if quick else (peer.jobs, CALLS)
    home = Home(HOMES, peer)
    try:
        home.make()
        turns.setdefault(who, []).append(take(peer, home, ground, jobs=jobs, calls=calls))
    except NotRun as reason:
        turns.pop(who, None)
        out[who] = str(reason)


def read_words() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these systems; dibs always takes part")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a fifth of the jobs")
    parser.add_argument("--json", type=Path, help="write the figures to this file, too")
    return parser.parse_args()


def chosen(names: list[str]) -> list[Peer]:
    """Return the peers of these names and dibs itself, all if none is named. Raises SystemExit."""
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        known = ", ".join(sorted({peer.name for peer in PEERS}))
        raise SystemExit(f"no peer called {', '.join(sorted(unknown))}; there are {known}")
    return [peer for peer in PEERS if not names or peer.name in names or peer.runtime == "ours"]


def main() -> None:
    """Race, print, keep."""
    words = read_words()
    peers = chosen(words.names)
    with grounds() as (by_kind, told):
        turns, out, bare = race(peers, by_kind, rounds=words.rounds, quick=words.quick)
    rows = [table.row(peer, turns, out, bare) for peer in peers]
    console = output.console()
    for kind in by_kind:
        table.show(kind, [row for row in rows if row["kind"] == kind], console)
    console.print(f"{told}; {platform.python_implementation()} {platform.python_version()}", style="dim")
    if words.json:
        kept: dict[str, Any] = {"rows": rows, "yardsticks": bare, "turns": _raw(turns)}
        words.json.write_text(json.dumps(kept, indent=2) + "\n")


def _raw(turns: Turns) -> dict[str, Any]:
    return {f"{kind}: {name}": msgspec.to_builtins(found) for (kind, name), found in turns.items()}


if __name__ == "__main__":
    main()
