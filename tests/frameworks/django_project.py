"""Runs of the Django project in apps/django_project: its database, its commands and its servers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg.sql import SQL, Identifier

from dibs_conformance.servers import PostgresServer
from tests.source import PROJECT

FOLDER: Final = PROJECT / "tests" / "frameworks" / "apps" / "django_project"


class Site(NamedTuple):
    """The project with a database of its own."""

    server: PostgresServer
    #: The name of the database of production.
    database: str
    env: dict[str, str]
    #: The folder with manage.py.
    folder: Path = FOLDER

    def run(self, *words: str, timeout: float = 120, **env: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments in the folder of the project, and return its output."""
        return subprocess.run(
            [sys.executable, "-W", "error::ResourceWarning", "-X", "dev", *words],
            cwd=self.folder,
            env={**self.env, **env},
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )

    def create_tables(self) -> None:
        done = self.run("manage.py", "migrate", "--run-syncdb", "-v", "0")
        assert 0 == done.returncode, done.stderr

    def query(self, statement: str, *params: object) -> list[tuple[Any, ...]]:
        """Run a statement in the database `postgres`, and return its rows."""
        with psycopg.connect(self.server.url, autocommit=True) as connection:
            return connection.execute(statement, params).fetchall()

    def databases(self) -> list[str]:
        """Return the names of the databases of this project, those of tests among them."""
        found = self.query(
            "SELECT datname FROM pg_database WHERE datname LIKE %s ORDER BY 1", f"%{self.database}%"
        )
        return [name for (name,) in found]

    def sessions(self) -> int:
        """Return the number of sessions of dibs in the databases of this project."""
        ((count,),) = self.query(
            "SELECT count(*) FROM pg_stat_activity WHERE datname LIKE %s AND application_name = 'dibs'",
            f"%{self.database}%",
        )
        return int(count)

    def schemas(self) -> list[str]:
        """Return the names of the schemas in the database of production, without those of Postgres."""
        url = self.server.url.rpartition("/")[0] + f"/{self.database}"
        with psycopg.connect(url) as connection:
            found = connection.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_|information_schema' ORDER BY 1"
            )
            return [name for (name,) in found]

    @contextmanager
    def serve(self, *words: str, **env: str) -> Iterator[Served]:
        """Start a server, wait until it answers, and stop it after the block. `{port}` is a free port."""
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            port = sock.getsockname()[1]
        command = [sys.executable, *(word.replace("{port}", str(port)) for word in words)]
        # A file, because a server would stop at a full pipe.
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env={**self.env, **env},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            served = Served(f"http://127.0.0.1:{port}", process, [])
            try:
                served.wait_until_ready()
                yield served
            finally:
                served.stop()
                output.seek(0)
                served.output.append(output.read().decode())


class Served(NamedTuple):
    """A server that runs the project."""

    url: str
    process: subprocess.Popen[bytes]
    #: The output of the server, after it was stopped.
    output: list[str]

    def get(self, path: str) -> Any:
        """Return the JSON of a view. Raise HTTPError for another status than 200."""
        with urllib.request.urlopen(f"{self.url}/{path}", timeout=60) as reply:
            return json.load(reply)

    def status(self, path: str) -> int:
        try:
            self.get(path)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        return 200

    def pid(self) -> int | None:
        """Return the id of the process that answers, or None if none does."""
        try:
            return int(self.get("process")["pid"])
        except (OSError, ValueError):
            return None

    def wait_until_ready(self, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while self.pid() is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail("the server does not answer")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop the server as Ctrl-C does, with its reloader."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def new_site(server: PostgresServer, folder: Path = FOLDER, **settings: Any) -> Iterator[Site]:
    """Create the database of the project in `folder`, and drop it and its test databases afterwards.

    `settings` are added to the entry of DATABASES.
    """
    name = f"shop_{os.urandom(4).hex()}"
    parts = urlsplit(server.url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": name,
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.hostname,
        "PORT": parts.port,
        **settings,
    }
    env = {
        **os.environ,
        "SHOP_DATABASE": json.dumps(database),
        "PYTHONPATH": os.pathsep.join([str(folder), str(PROJECT / "src"), str(PROJECT / "conformance")]),
        "DJANGO_SETTINGS_MODULE": "project.settings",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(SQL("CREATE DATABASE {}").format(Identifier(name)))
    site = Site(server, name, env, folder)
    try:
        yield site
    finally:
        with psycopg.connect(server.url, autocommit=True) as connection:
            for each in site.databases():
                connection.execute(SQL("DROP DATABASE {} WITH (FORCE)").format(Identifier(each)))
