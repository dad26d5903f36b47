"""The areas that mutants are drawn from: the storages, `worker` and `client`, with the files of each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from attrs import frozen

from tests.mutation.lua_edits import lua_edits
from tests.mutation.python_edits import python_edits
from tests.mutation.site import FindEdits, Site, find_sites
from tests.mutation.sql_edits import sql_edits

GRAMMARS: Final[dict[str, FindEdits]] = {".py": python_edits, ".lua": lua_edits, ".sql": sql_edits}


@frozen(kw_only=True)
class Area:
    """Files whose mutants are tried by the same tests."""

    name: str
    #: Glob patterns of the files, relative to the project.
    files: tuple[str, ...]
    #: Glob patterns of files without mutants.
    without: tuple[str, ...] = ()
    #: The storages on which the conformance kit tries the mutants, one after the other; () for no kit.
    kit: tuple[str, ...] = ()
    #: The folder of the tests for these files. Its tests try the mutants after the kit, if requested.
    tests: str

    def sources(self, project: Path) -> list[Path]:
        """Return the files of the area in alphabetical order."""
        left_out = {file for pattern in self.without for file in project.glob(pattern)}
        found = {file for pattern in self.files for file in project.glob(pattern)}
        return sorted(found - left_out)

    def sites(self, project: Path) -> Iterator[Site]:
        """Return every site in the files of the area."""
        for file in self.sources(project):
            text = file.read_text("utf-8")
            yield from find_sites(file.relative_to(project).as_posix(), text, GRAMMARS[file.suffix])


_REDIS: Final = "src/dibs/storage/redis"
_POSTGRES: Final = "src/dibs/storage/postgres"
_SQLITE: Final = "examples/dibs-sqlite/src/dibs_sqlite"
_LMDB: Final = "examples/dibs-lmdb/src/dibs_lmdb"

# The URLs, settings and network errors of clients have their own tests in tests/storage; the contract does
# not name them. The same holds for the functions and views of Postgres for callers of SQL, and for the parts
# of the model that only workers and clients use.
_MODEL: Final = (
    "check_jobs",
    "events",
    "fold",
    "job",
    "limits",
    "overrides",
    "requests",
    "results",
    "rules",
    "transitions",
)
_SHARED: Final = ("memory", "checks", "clock", "offsets", "sleeper")
_NOT_POSTGRES: Final = (
    "temporary.py",
    "vacuum.py",
    "migrations/0001_tables.sql",
    "functions/sql_calls.sql",
    "functions/views.sql",
)

_AREAS: Final = (
    # Two storages try the mutants of these areas, because some mutants show on one storage alone: `postgres`
    # uses defaults of results that `memory` sets, and only `file` needs all recorded changes of a step.
    Area(
        name="model",
        files=tuple(f"src/dibs/model/{name}.py" for name in _MODEL),
        kit=("memory", "postgres"),
        tests="tests/model",
    ),
    Area(
        name="memory",
        files=("src/dibs/storage/indexed/*.py", *(f"src/dibs/storage/{name}.py" for name in _SHARED)),
        kit=("memory", "file"),
        tests="tests/storage/indexed",
    ),
    Area(
        name="file",
        files=("src/dibs/storage/file/*.py",),
        without=("src/dibs/storage/file/temporary.py",),
        kit=("file",),
        tests="tests/storage/file",
    ),
    Area(
        name="redis",
        files=(
            *(f"{_REDIS}/{files}" for files in ("lua/**/*.lua", "*.py", "codec/*.py", "wakeups/*.py")),
            "src/dibs/storage/wait_loop.py",
        ),
        without=(f"{_REDIS}/temporary.py",),
        kit=("redis",),
        tests="tests/storage/redis",
    ),
    Area(
        name="postgres",
        files=tuple(f"{_POSTGRES}/{files}" for files in ("**/*.sql", "*.py", "codec/*.py", "wakeups/*.py")),
        without=tuple(f"{_POSTGRES}/{name}" for name in _NOT_POSTGRES),
        kit=("postgres",),
        tests="tests/storage/postgres",
    ),
    Area(
        name="sqlite",
        files=(f"{_SQLITE}/*.py", f"{_SQLITE}/sql/queries.sql"),
        kit=("sqlite",),
        tests="tests/examples/test_sqlite.py",
    ),
    Area(
        name="lmdb",
        files=(f"{_LMDB}/*.py",),
        without=(f"{_LMDB}/location.py",),
        kit=("lmdb",),
        tests="tests/examples/test_lmdb.py",
    ),
    Area(name="worker", files=("src/dibs/worker/**/*.py",), tests="tests/worker"),
    Area(
        name="client",
        files=("src/dibs/app.py", "src/dibs/client/**/*.py"),
        without=("src/dibs/client/sync/**/*.py",),
        tests="tests/client",
    ),
)
AREAS: Final = {area.name: area for area in _AREAS}
STORAGES: Final = tuple(name for name, area in AREAS.items() if area.kit)
