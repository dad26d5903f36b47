"""The store of a warehouse's location."""

from __future__ import annotations

from pathlib import Path

from dibs.errors import Refused
from dibs.spark.history.warehouse.local_store import LocalStore
from dibs.spark.history.warehouse.remote_store import OBJECT_STORES, RENAMING_STORES, RemoteStore
from dibs.spark.history.warehouse.store import Store

_opened: dict[str, Store] = {}


def open_store(location: str | Path) -> Store:
    """Return the store of a warehouse: a path, or a URL such as `s3://bucket/history`.

    A process has one store per URL, so that increments use the downloads of earlier ones. Raise Refused
    for a URL of another scheme.
    """
    scheme, separator, rest = str(location).partition("://")
    if not separator:
        return LocalStore(Path(location))
    if scheme == "file":
        return LocalStore(Path("/" + rest.lstrip("/")))
    if scheme not in {*OBJECT_STORES, *RENAMING_STORES}:
        known = ", ".join(sorted({*OBJECT_STORES, *RENAMING_STORES}))
        raise Refused(
            f"no warehouse can be at {scheme}://; use a path, or a URL with one of these schemes: {known}",
            field="warehouse",
        )
    if not rest.strip("/"):
        raise Refused(f"{location} names no bucket; write {scheme}://BUCKET/FOLDER", field="warehouse")
    return _opened.setdefault(str(location).rstrip("/"), RemoteStore(str(location)))
