"""What the product takes from the standard library and from itself without an argument, given from the seed.

Clocks, random bytes and threads have no seam in dibs: its modules call `time.monotonic`, `random.random`,
`os.urandom` and `threading.Thread` directly. So a simulation replaces these functions in its process. The
order of sets of text follows from PYTHONHASHSEED, which command.py sets for each seed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from random import Random
from typing import Any, Final
from unittest.mock import patch

from dibs.client.options.arguments import new_id
from dibs.storage.sleeper import Sleeper
from dibs.worker.execution.invocation import Invocation
from dibs_conformance.simulation.world import EPOCH, SECOND, ProcessLoop, SimulatedTask, World

#: The threads that a simulated process leaves out. The watchdog of a worker only writes warnings.
LEFT_OUT: Final = frozenset({"dibs-watchdog"})


@contextmanager
def from_seed(world: World, seed: int) -> Iterator[None]:
    """Give clocks, random numbers, generated ids and hashes of objects from the seed for a block."""
    with ExitStack() as stack:
        for module, name, function in (*_clocks(world), *_random_bytes(Random(seed + 1))):
            stack.enter_context(patch.object(module, name, function))
        stack.enter_context(patch.object(threading.Thread, "start", _start_no_thread))
        stack.enter_context(patch.object(SimulatedTask, "_numbers", count()))
        # Sets of these objects are iterated; by default their order is that of their addresses.
        stack.enter_context(patch.object(Sleeper, "__hash__", _number_in_order(count())))
        stack.enter_context(patch.object(Invocation, "__hash__", lambda run: run.fence))
        # Killed processes leave coroutines and generators behind, which complain when they are collected.
        stack.enter_context(patch.object(sys, "unraisablehook", lambda _: None))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)
        stack.enter_context(_seeded_ids(seed + 2))
        random.seed(seed + 3)
        # Collected by hand at fixed times: a finalizer must run at the same time in each run of a seed.
        gc.disable()
        stack.callback(gc.enable)
        stack.callback(gc.collect)
        yield


def _clocks(world: World) -> list[tuple[Any, str, Callable[[], Any]]]:
    def monotonic() -> float:
        loop = asyncio._get_running_loop()  # noqa: SLF001 - in asyncio.__all__
        return loop.time() if isinstance(loop, ProcessLoop) else world.now / SECOND

    def date_ns() -> int:
        loop = asyncio._get_running_loop()  # noqa: SLF001 - in asyncio.__all__
        return loop.process.clock.date_ns() if isinstance(loop, ProcessLoop) else EPOCH + world.now

    return [
        (time, "monotonic", monotonic),
        (time, "perf_counter", monotonic),
        (time, "time_ns", date_ns),
        (time, "time", lambda: date_ns() / SECOND),
    ]


def _random_bytes(source: Random) -> list[tuple[Any, str, Callable[[int], bytes]]]:
    # `secrets` draws by the name that `random` gives to os.urandom.
    return [(os, "urandom", source.randbytes), (random, "_urandom", source.randbytes)]


def _start_no_thread(thread: threading.Thread) -> None:
    if thread.name not in LEFT_OUT:
        raise RuntimeError(f"a simulated process has no threads, and one was started: {thread.name}")


def _number_in_order(numbers: Iterator[int]) -> Callable[[Any], int]:
    def hash_of(self: Any) -> int:
        number: int | None = self.__dict__.get("_number")
        if number is None:
            number = self.__dict__["_number"] = next(numbers)
        return number

    return hash_of


@contextmanager
def _seeded_ids(seed: int) -> Iterator[None]:
    """Give the generator of ids a state from the seed: at its import it took one from the system."""
    generator: Any = new_id.__self__  # type: ignore[attr-defined]
    with patch.object(generator, "_random", Random(seed)):
        before = generator._current  # noqa: SLF001 - it has no seam
        generator._current = generator._start_millisecond(0)  # noqa: SLF001
        try:
            yield
        finally:
            generator._current = before  # noqa: SLF001
