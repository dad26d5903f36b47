"""Tests of the floors inside `client`, `worker` and the server storages, and of import circles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.source import Import, Module, imports, read, read_project, write_source

# The floors of each room, lowest first. A module imports its own floor and the floors below it. Where a
# room has floors, every module directly in it stands on one of them, as a file or as a folder.
FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "dibs.client": (
        ("options",),
        ("calls",),
        ("connection",),
        (
            *("claim", "feed", "listing", "output", "queue", "receiver", "schedules", "stored_schedules"),
            *("status", "stored_queue", "task", "ticket", "work_report", "worker_info"),
        ),
        ("sync",),
    ),
    "dibs.worker": (
        ("messages",),
        ("execution",),
        ("dispatch",),
        ("processes",),
        ("work_plan",),
        ("supervisor",),
        ("work_session",),
    ),
    "dibs.storage.redis": (
        ("keys",),
        ("codec",),
        ("network",),
        ("diagnosis", "wakeups"),
        ("session",),
        ("listing",),
        ("storage",),
        ("temporary",),
    ),
    "dibs.storage.postgres": (
        ("queries",),
        ("codec",),
        ("migrate",),
        ("network",),
        ("diagnosis", "line_starts", "vacuum", "wakeups"),
        ("session",),
        ("direct_enqueue", "key_sets", "many_queues", "transactions"),
        ("storage",),
        ("temporary",),
    ),
}

# A handle makes its blocking twin when `.sync` is asked for, and the twin wraps the handle: the one circle
# that is allowed, because each of the two is the other half of one class.
TWINS = {
    "dibs.app": "dibs.client.sync.app",
    "dibs.client.listing": "dibs.client.sync.queue",
    "dibs.client.queue": "dibs.client.sync.queue",
    "dibs.client.task": "dibs.client.sync.task",
    "dibs.client.ticket": "dibs.client.sync.queue",
    "dibs.client.claim": "dibs.client.sync.claim",
    "dibs.client.feed": "dibs.client.sync.claim",
    "dibs.client.receiver": "dibs.client.sync.claim",
    "dibs.client.schedules": "dibs.client.sync.queue",
    "dibs.flow.builder": "dibs.client.sync.flow",
    "dibs.flow.stored_flow": "dibs.client.sync.flow",
    "dibs.flow.batch.batch": "dibs.client.sync.flow",
    "dibs.flow.batch.stored_batch": "dibs.client.sync.flow",
}


def imported(module: Module, modules: Mapping[str, Module]) -> dict[str, int]:
    """Return the modules that a module names in an import, each with the line of the import."""
    targets = ((target_of(wanted, modules), wanted.line) for wanted in imports(module))
    return {target: line for target, line in targets if target in modules and target != module.name}


def target_of(wanted: Import, modules: Mapping[str, Module]) -> str:
    inner = f"{wanted.base}.{wanted.name}"
    return inner if inner in modules else wanted.base


def floor_of(name: str, room: str) -> int | None:
    """Return the number of the floor that a module stands on, 0 is the lowest; None outside the room."""
    if not name.startswith(f"{room}."):
        return None
    part = name.removeprefix(f"{room}.").partition(".")[0]
    return next((number for number, parts in enumerate(FLOORS[room]) if part in parts), -1)


def upward(modules: Mapping[str, Module]) -> Iterator[str]:
    """Yield a sentence for each import of a higher floor, and for each module without a floor."""
    for room in FLOORS:
        for module in modules.values():
            floor = floor_of(module.name, room)
            if floor is None:
                continue
            if floor < 0:
                yield f"{module.name} stands on no floor of {room}: add it to FLOORS"
            for target, line in imported(module, modules).items():
                other = floor_of(target, room)
                if other is not None and other > floor >= 0 and TWINS.get(module.name) != target:
                    yield f"{module.name}:{line} imports {target}, which is on a higher floor of {room}"


def circles(modules: Mapping[str, Module]) -> list[list[str]]:
    """Return each group of modules that import each other, directly or through others (Tarjan)."""
    edges = {
        name: [target for target in imported(module, modules) if TWINS.get(name) != target]
        for name, module in modules.items()
    }
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        numbers[name] = lowest[name] = len(numbers)
        stack.append(name)
        for target in edges[name]:
            if target not in numbers:
                visit(target)
            if target in stack:
                lowest[name] = min(lowest[name], lowest[target])
        if lowest[name] == numbers[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in edges:
        if name not in numbers:
            visit(name)
    return found


@pytest.mark.long
def test_every_import_goes_down_or_stays_on_its_floor() -> None:
    assert [] == list(upward(read_project()))


@pytest.mark.long
def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports in functions and under TYPE_CHECKING count: a reader follows them as well."""
    assert [] == circles(read_project())


@pytest.mark.long
def test_every_exception_for_a_twin_is_still_needed() -> None:
    modules = read_project()

    assert [] == [name for name, twin in TWINS.items() if twin not in imported(modules[name], modules)]


HOUSE = {
    "dibs/client/options/arguments.py": "",
    "dibs/client/queue.py": "def f():\n    from dibs.client.sync.queue import BlockingQueue",
    "dibs/client/sync/queue.py": "from dibs.client.queue import Queue",
    "dibs_conformance/a.py": "from dibs_conformance import b",
    "dibs_conformance/b.py": "",
}

PLANTED = {
    "a higher floor": ("dibs/client/options/arguments.py", "from dibs.client import queue", upward),
    "a higher floor, for types": (
        "dibs/client/options/arguments.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dibs.client.queue import Queue",
        upward,
    ),
    "a module without a floor": ("dibs/client/new.py", "", upward),
    "a circle of two": ("dibs_conformance/b.py", "import dibs_conformance.a", circles),
    "a circle through a function": (
        "dibs_conformance/b.py",
        "def f():\n    from dibs_conformance.c import x",
        circles,
    ),
}


@pytest.mark.parametrize(("file", "text", "rule"), PLANTED.values(), ids=PLANTED)
def test_a_planted_breach_is_caught(tmp_path: Path, file: str, text: str, rule: object) -> None:
    assert callable(rule)
    house = HOUSE | {"dibs_conformance/c.py": "from dibs_conformance.a import x"}
    for name, before in house.items():
        write_source(tmp_path / "clean", name, before)
    for name, after in (house | {file: text}).items():
        write_source(tmp_path / "broken", name, after)

    assert [] == list(rule(read(tmp_path / "clean")))
    assert 1 == len(list(rule(read(tmp_path / "broken"))))
