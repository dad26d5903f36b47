"""The table of docs/reference/frameworks.md, as values. A row with words starts a real server."""

from __future__ import annotations

from attrs import frozen

APPS = "tests.frameworks.apps"


@frozen
class Row:
    """One row: a framework and its server, how an application uses dibs there, and whether that works."""

    name: str
    use: str
    verdict: str = "works"
    note: str = ""
    #: The arguments of Python that start the server, with {port}; empty for a row without a server.
    words: tuple[str, ...] = ()
    #: The paths that the test requests in turn, each followed by a number.
    paths: tuple[str, ...] = ("/async/", "/sync/")
    #: The test, as file::function, of a row without `words`.
    test: str = ""
    #: Exit codes after SIGTERM. -15 is the signal itself, of servers that do not handle it.
    exits: tuple[int, ...] = (0,)
    #: The storages on which the test runs by default. On the others it runs with the marker `chaos`.
    by_default: tuple[str, ...] = ("file",)

    @property
    def test_id(self) -> str:
        return self.test or "test_servers.py"


def gunicorn(worker: str, app: str, *more: str) -> tuple[str, ...]:
    return ("-m", "gunicorn", "-b", "127.0.0.1:{port}", "-k", worker, "--log-level", "warning", *more, app)


LIFESPAN = "`await`; opened in the lifespan"
FIRST_USE = "`await`; opens at first use"
SYNC = "`.sync`; opens at first use in each process"
BOTH = "`await` in async views, `.sync` in `def` views"
FASTAPI, STARLETTE = f"{APPS}.fastapi_app:web", f"{APPS}.starlette_app:web"
FLASK, LITESTAR, QUART = f"{APPS}.flask_app:web", f"{APPS}.litestar_app:web", f"{APPS}.quart_app:web"
UVICORN = ("-m", "uvicorn", "--port", "{port}", "--log-level", "warning")
HYPERCORN = ("-m", "hypercorn", "-b", "127.0.0.1:{port}")

#: gunicorn 27 overlooks the end of its gevent workers until this time is over, with or without dibs.
GRACE = ("--graceful-timeout", "1")

SERVERS = (
    # Uvicorn raises the signal again at its end, once its lifespan has ended.
    Row(
        "FastAPI, uvicorn",
        f"{BOTH}; lifespan",
        words=(*UVICORN, "--loop", "asyncio", FASTAPI),
        exits=(0, -15),
        by_default=("file", "redis", "postgresql"),
    ),
    Row(
        "FastAPI, uvicorn with two workers",
        f"{BOTH}; lifespan",
        words=(*UVICORN, "--workers", "2", FASTAPI),
        by_default=(),
    ),
    Row(
        "FastAPI, uvicorn on uvloop",
        f"{BOTH}; lifespan",
        words=(*UVICORN, "--loop", "uvloop", FASTAPI),
        exits=(0, -15),
        by_default=(),
    ),
    Row("Starlette, hypercorn", f"{BOTH}; opens at first use", words=(*HYPERCORN, STARLETTE)),
    Row(
        "ASGI, hypercorn on trio",
        "`.sync` in `trio.to_thread.run_sync`",
        "needs a note",
        "an `await` raises ConfigurationError: [trio](#trio)",
        words=(*HYPERCORN, "-k", "trio", f"{APPS}.trio_app:web"),
        paths=("/sync/",),
    ),
    Row(
        "FastAPI, granian",
        f"{BOTH}; lifespan",
        words=("-m", "granian", "--interface", "asgi", "--port", "{port}", FASTAPI),
    ),
    Row(
        "FastAPI, gunicorn with its ASGI worker, preloaded",
        f"{BOTH}; lifespan",
        words=gunicorn("asgi", FASTAPI, "--preload"),
    ),
    Row("Flask, gunicorn sync", SYNC, words=gunicorn("sync", FLASK, "-w", "2", "--preload")),
    Row(
        "Flask, gunicorn gthread",
        SYNC,
        words=gunicorn("gthread", FLASK, "--threads", "4"),
        by_default=("file", "postgresql"),
    ),
    Row(
        "Flask, gunicorn gevent",
        SYNC,
        "needs a note",
        "no worker in a patched process; files poll: [gevent](#gevent)",
        words=gunicorn("gevent", FLASK, *GRACE),
        paths=("/sync/",),
        by_default=("file", "redis"),
    ),
    Row(
        "Flask, gunicorn gevent, preloaded",
        SYNC,
        "needs a note",
        "no worker in a patched process; files poll: [gevent](#gevent)",
        words=gunicorn("gevent", FLASK, "--preload", *GRACE),
        paths=("/sync/",),
        by_default=(),
    ),
    Row(
        "Flask, waitress", SYNC, words=("-m", "waitress", "--listen=127.0.0.1:{port}", FLASK), exits=(0, -15)
    ),
    Row(
        "Flask, development server",
        SYNC,
        words=("-m", "flask", "--app", FLASK, "run", "-p", "{port}"),
        exits=(0, -15),
        by_default=(),
    ),
    Row(
        "Quart, hypercorn",
        "`await` in async views, `.sync` in `def` views; before_serving",
        words=(*HYPERCORN, QUART),
    ),
    Row(
        "aiohttp",
        "`await`; opened in a cleanup context",
        words=("-m", "aiohttp.web", "-H", "127.0.0.1", "-P", "{port}", f"{APPS}.aiohttp_app:make"),
        paths=("/async/",),
    ),
    # In a single process: Sanic's manager hangs if SIGTERM arrives in its first second, also without dibs.
    Row(
        "Sanic",
        "`await`; opened before the server starts",
        "needs a note",
        "`def` views run on the event loop: use `asyncio.to_thread` for `.sync`",
        words=(
            "-m",
            "sanic",
            f"{APPS}.sanic_app:web",
            "--host=127.0.0.1",
            "--port={port}",
            "--single-process",
        ),
    ),
    Row("Litestar, uvicorn", f"{BOTH}; lifespan", words=(*UVICORN, LITESTAR), exits=(0, -15)),
)

PROCESSES = "test_processes.py::test_a_program_uses_one_app"
PLUGINS = "test_processes.py::test_async_tests_of_a_user_pass"

OTHERS = (
    Row(
        "Django, runserver, gunicorn, uvicorn, daphne",
        BOTH,
        test="test_django_servers.py::test_each_kind_of_view_enqueues",
    ),
    Row("Django's TestCase and test databases", BOTH, test="test_django_tests.py"),
    Row("Django's task API, `django.tasks`", "`task.enqueue`", test="test_django_tasks.py"),
    Row(
        "gevent, patched",
        "`.sync` in any greenlet",
        "needs a note",
        "no worker in a patched process; files poll: [gevent](#gevent)",
        test="test_gevent.py::test_greenlets_make_blocking_calls",
    ),
    Row(
        "eventlet, patched",
        "none",
        "broken",
        "refused by ConfigurationError: [eventlet](#eventlet)",
        test="test_gevent.py::test_eventlet_is_refused_at_each_call_with_the_way_out",
    ),
    Row(
        "A worker in a process that gevent or eventlet patched",
        "none",
        "broken",
        "refused by ConfigurationError: [gevent](#gevent)",
        test="test_gevent.py::test_a_worker_in_a_patched_process_is_refused",
    ),
    Row(
        "trio; anyio on trio",
        "`.sync` in `trio.to_thread.run_sync`",
        "needs a note",
        "an `await` raises ConfigurationError: [trio](#trio)",
        test="test_trio.py::test_async_calls_under_trio_say_what_to_do",
    ),
    Row("anyio on asyncio", "`await`", test="test_trio.py::test_the_asyncio_backend_of_anyio_awaits"),
    Row("uvloop", "`await`", test=f"{PROCESSES}[uvloop]"),
    Row("Jupyter and IPython", "`await` in a cell", test=f"{PROCESSES}[ipython]"),
    Row("ThreadPoolExecutor", "`.sync`", test=f"{PROCESSES}[threads]"),
    Row("asyncio.run on several threads at once", "`await`, beside `.sync`", test=f"{PROCESSES}[loops]"),
    Row("os.fork, as in a prefork pool", "both, in parent and children", test=f"{PROCESSES}[prefork]"),
    Row("multiprocessing: fork, spawn, forkserver", "`.sync`", test=f"{PROCESSES}[multiprocessing]"),
    Row("pytest-asyncio, each loop scope", "`await`, beside `.sync`", test=f"{PLUGINS}[asyncio]"),
    Row("pytest-xdist", "`await`, beside `.sync`", test=f"{PLUGINS}[xdist]"),
    Row("anyio's plugin of pytest", "`await`, beside `.sync`", test=f"{PLUGINS}[anyio]"),
)


def print_table() -> str:
    """Return all rows as a Markdown table."""
    lines = ["| framework and server | how to use dibs | verdict | note | test |", "|---|---|---|---|---|"]
    for row in (*SERVERS, *OTHERS):
        test = row.test_id.partition("[")[0].replace("::", "` `")
        lines.append(f"| {row.name} | {row.use} | {row.verdict} | {row.note} | `{test}` |")
    return "\n".join(lines) + "\n"
