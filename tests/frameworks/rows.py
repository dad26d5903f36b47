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
    #: True for rows that also run on Redis and on Postgres by default; False: on files only.
    on_servers: bool = False

    @property
    def test_id(self) -> str:
        return self.test or f"test_servers.py, {self.name}"


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
        on_servers=True,
    ),
    Row(
        "FastAPI, uvicorn with two workers", f"{BOTH}; lifespan", words=(*UVICORN, "--workers", "2", FASTAPI)
    ),
    Row(
        "FastAPI, uvicorn on uvloop",
        f"{BOTH}; lifespan",
        words=(*UVICORN, "--loop", "uvloop", FASTAPI),
        exits=(0, -15),
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
        on_servers=True,
    ),
    Row(
        "Flask, gunicorn gevent",
        SYNC,
        "needs a note",
        "workers do not patch; files poll: [gevent](#gevent)",
        words=gunicorn("gevent", FLASK, *GRACE),
        paths=("/sync/",),
        on_servers=True,
    ),
    Row(
        "Flask, gunicorn gevent, preloaded",
        SYNC,
        "needs a note",
        "workers do not patch; files poll: [gevent](#gevent)",
        words=gunicorn("gevent", FLASK, "--preload", *GRACE),
        paths=("/sync/",),
    ),
    Row(
        "Flask, waitress", SYNC, words=("-m", "waitress", "--listen=127.0.0.1:{port}", FLASK), exits=(0, -15)
    ),
    Row(
        "Flask, development server",
        SYNC,
        words=("-m", "flask", "--app", FLASK, "run", "-p", "{port}"),
        exits=(0, -15),
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
    Row(
        "Sanic",
        "`await`; opened before the server starts",
        "needs a note",
        "`def` views run on the event loop: use `asyncio.to_thread` for `.sync`",
        words=("-m", "sanic", f"{APPS}.sanic_app:web", "--host", "127.0.0.1", "--port", "{port}"),
    ),
    Row("Litestar, uvicorn", f"{BOTH}; lifespan", words=(*UVICORN, LITESTAR), exits=(0, -15)),
)
