"""The connection settings of a pool of psycopg_pool that an application hands over.

dibs opens connections of its own with these settings. Its connections run a statement to its end if the
caller is cancelled, and prepare no statement behind a pooler, so it cannot use the connections of the pool.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote, urlencode

from attrs import field, frozen
from psycopg.conninfo import conninfo_to_dict

from dibs.errors import ConfigurationError

#: Arguments of psycopg's `connect` that are not parameters of libpq. dibs sets its own.
DRIVER_ARGUMENTS: Final = ("autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory")


@frozen
class PoolSettings:
    """The `conninfo` and `kwargs` of a pool: values, or functions that the pool calls for each connection."""

    _conninfo: Any = field(repr=False)
    _kwargs: Any = field(repr=False)

    @property
    def is_dynamic(self) -> bool:
        """True if a function gives the settings, for example a password that expires."""
        return callable(self._conninfo) or callable(self._kwargs)

    @property
    def url(self) -> str:
        """The URL of the database with its password, without the settings that functions give."""
        params = _join_params(
            "" if callable(self._conninfo) else self._conninfo,
            None if callable(self._kwargs) else self._kwargs,
        )
        user, password, database = (
            quote(str(params.pop(name, "")), safe="") for name in ("user", "password", "dbname")
        )
        host, port = str(params.get("host", "")), str(params.get("port", ""))
        at = f"{user}:{password}@" if password else f"{user}@" if user else ""
        if re.fullmatch(r"[\w.-]+", host) and port.isdigit():
            at += f"{params.pop('host')}:{params.pop('port')}"
        return f"postgresql://{at}/{database}?{urlencode(params, quote_via=quote)}".rstrip("?")

    async def read(self) -> dict[str, Any]:
        """Return libpq's parameters for a new connection."""
        return _join_params(
            *[
                await one if inspect.isawaitable(one) else one
                for one in map(_call, (self._conninfo, self._kwargs))
            ]
        )

    def read_blocking(self) -> dict[str, Any]:
        """Return libpq's parameters for a new connection. Raise ConfigurationError for an async function."""
        conninfo, kwargs = map(_call, (self._conninfo, self._kwargs))
        for name, value in (("conninfo", conninfo), ("kwargs", kwargs)):
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                raise ConfigurationError(
                    f"{name} of the pool is an async function, which a blocking call cannot await: pass a "
                    "pool with a plain function"
                )
        return _join_params(conninfo, kwargs)


def client_options(pool: object) -> tuple[str, dict[str, Any]]:
    """Return the URL and the options of `open_url` for a pool of psycopg_pool. Raise ConfigurationError."""
    settings = read_pool(pool)
    return settings.url, {"pool": settings}


def read_pool(pool: Any) -> PoolSettings:
    """Return the settings of a pool of psycopg_pool, blocking or async."""
    if not hasattr(pool, "conninfo") or not hasattr(pool, "kwargs"):
        raise ConfigurationError(
            f"a {type(pool).__name__} is not a pool; pass an AsyncConnectionPool or a ConnectionPool of "
            "psycopg_pool"
        )
    return PoolSettings(pool.conninfo, pool.kwargs)


def _call(value: Any) -> Any:
    return value() if callable(value) else value


def _join_params(conninfo: str | None, kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    named = {name: value for name, value in (kwargs or {}).items() if name not in DRIVER_ARGUMENTS}
    return dict(conninfo_to_dict(conninfo or "", **named))
