"""The storage of a `django:` URL: the jobs of an app in a Postgres database of a Django project.

`Dibs("django:default")` reads the settings of DATABASES when the storage is opened, so under Django's test
runner and pytest-django the jobs are in the test database. Before Django creates, copies or drops a database,
all apps of the process close their sessions; Postgres refuses to copy or drop a database with other sessions.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode
from weakref import WeakSet

from attrs import define, field

from dibs.client.calls.current_job import CurrentJob
from dibs.client.connection.open_storage import close_all_apps, has_open_apps
from dibs.client.sync.background_loop import BACKGROUND
from dibs.errors import ConfigurationError
from dibs.storage import postgres

if TYPE_CHECKING:
    from dibs.storage.protocol import Clock

#: The alias of the database in DATABASES for a URL without one.
DEFAULT_ALIAS: Final = "default"
#: The most seconds that Django waits for the apps to close their sessions.
CLOSE_TIMEOUT: Final = 10.0
#: Arguments of psycopg's `connect` that Django passes and that are not parameters of libpq.
_DRIVER_ARGUMENTS: Final = ("context", "cursor_factory", "prepare_threshold")


def open_url(url: str, *, clock: Clock = "system", **options: Any) -> postgres.PostgresStorage:
    """Return the storage of a URL, not yet opened: `django:ALIAS?schema=NAME`, as in `django:default`.

    The options are those of a postgresql: URL. Raises ConfigurationError if Django is not installed or has
    no settings, and for an alias that is unknown or not a Postgres database. A test that may not use the
    database gets the error that Django or pytest-django raises for it.
    """
    alias, _, query = url.partition(":")[2].partition("?")
    params = _read_params(alias or DEFAULT_ALIAS)
    postgres_url = f"postgresql:///?{urlencode(params, quote_via=quote)}" + (f"&{query}" if query else "")
    return postgres.open_url(postgres_url, clock=clock, **options)


def _read_params(alias: str) -> dict[str, Any]:
    """Return the parameters of libpq with which Django connects to the database `alias` now."""
    try:
        from django.core.exceptions import ImproperlyConfigured  # noqa: PLC0415 - Django may be missing
        from django.db import connections  # noqa: PLC0415
        from django.db.backends.signals import connection_created  # noqa: PLC0415
    except ImportError:
        raise ConfigurationError("a django: URL needs Django; install it with pip install django") from None
    try:
        known = list(connections)
        if alias not in known:
            raise ConfigurationError(
                f"django:{alias} names no database of settings.DATABASES; known: {', '.join(known)}"
            )
        database = connections.create_connection(alias)
    except ImproperlyConfigured as error:
        raise ConfigurationError(
            "a django: URL reads settings.DATABASES, and Django has no settings here; set "
            f"DJANGO_SETTINGS_MODULE, or call django.setup() first: {error}"
        ) from error
    except ImportError as error:
        raise ConfigurationError(
            f"a django: URL reads settings.DATABASES, and Django cannot import its settings: {error}; run "
            "this in the directory of manage.py, or add that directory to PYTHONPATH"
        ) from error
    if database.vendor != "postgresql":
        raise ConfigurationError(
            f"django:{alias} is a database of {database.vendor}, and a django: URL needs Postgres; use "
            "another URL, such as file:./jobs"
        )
    _ask_permission(database)
    connection_created.connect(_close_before_maintenance, dispatch_uid="dibs")
    params = database.get_connection_params()
    return {name: value for name, value in params.items() if name not in _DRIVER_ARGUMENTS}


def _ask_permission(database: Any) -> None:
    """Raise the error of Django's SimpleTestCase or of pytest-django if this test may not use the database.

    Both replace `ensure_connection`. Without this call, a test that gets no test database would write jobs
    into the database of production.
    """
    # The check needs no session.
    database.connect = _do_nothing
    # On another thread, because Django refuses the call on a thread with a running event loop.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(database.ensure_connection).result()


def _do_nothing() -> None:
    pass


def _close_before_maintenance(*, connection: Any, **_: Any) -> None:
    """Close the sessions of all apps if `connection` is to the server and to no database of the project.

    Django opens such a connection only to create, copy and drop databases.
    """
    from django.db.backends.base.base import NO_DB_ALIAS  # noqa: PLC0415 - Django may be missing

    if connection.alias == NO_DB_ALIAS:
        close_connections()
        for kept in tuple(_kept_connections):
            kept.close()


def close_connections() -> None:
    """Close the storages of all apps of this process. The next use of an app opens its storage again."""
    if has_open_apps():
        asyncio.run_coroutine_threadsafe(close_all_apps(), BACKGROUND.loop()).result(CLOSE_TIMEOUT)


#: The attribute `kept` has the KeptConnections of the current thread.
_of_thread: Final = threading.local()
#: The connections that threads of handlers keep open between runs, as CONN_MAX_AGE allows.
_kept_connections: Final[WeakSet[KeptConnections]] = WeakSet()
#: The tasks of `_close_those_of_async_queries` that run.
_closing: Final[set[asyncio.Task[None]]] = set()


@contextmanager
def close_old_connections(_job: CurrentJob) -> Iterator[None]:
    """Close Django's connections that are too old or broken, before and after a run.

    Use it as `app.middleware(run=close_old_connections)`: a worker has no requests, after which Django does
    this. CONN_MAX_AGE limits the age of a connection; its default 0 gives each run a new one.
    """
    _close_those_of_this_run()
    try:
        yield
    finally:
        _close_those_of_this_run()


def _close_those_of_this_run() -> None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        _close_those_of_this_thread()
        return
    task = loop.create_task(_close_those_of_async_queries())
    _closing.add(task)
    task.add_done_callback(_closing.discard)


async def _close_those_of_async_queries() -> None:
    """Close the old connections of the thread on which asgiref runs the queries of async handlers."""
    from asgiref.sync import sync_to_async  # noqa: PLC0415 - Django requires asgiref

    await sync_to_async(_close_those_of_this_thread)()


def _close_those_of_this_thread() -> None:
    from django.db import connections  # noqa: PLC0415 - Django may be missing

    opened = connections.all(initialized_only=True)
    for connection in opened:
        # Django would close the connection of a TestCase, which is in a transaction.
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()
    kept: KeptConnections | None = getattr(_of_thread, "kept", None)
    if kept is None:
        kept = _of_thread.kept = KeptConnections()
        _kept_connections.add(kept)
    kept.connections = opened


@define(eq=False)
class KeptConnections:
    """The connections of Django on one thread. They are closed when the thread ends."""

    connections: list[Any] = field(factory=list, init=False)

    def close(self) -> None:
        """Close the connections, on any thread."""
        for connection in self.connections:
            # Django lets only the thread that made a connection close it, unless it is shared.
            connection.inc_thread_sharing()
            try:
                connection.close()
            finally:
                connection.dec_thread_sharing()

    def __del__(self) -> None:
        self.close()
