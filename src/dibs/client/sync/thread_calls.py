"""Runs an enqueue for blocking code on its own thread, if the storage can do so."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from dibs.client.connection.storage_handle import StorageHandle
from dibs.client.connection.thread_enqueues import start_on_thread, thread_enqueues
from dibs.client.sync.background_loop import BACKGROUND, refuse_on_loop, run_with_connection
from dibs.storage.monkey_patches import gevent_has_patched

T = TypeVar("T")


def run_enqueue(handle: StorageHandle, async_form: str, call: Coroutine[Any, Any, T]) -> T:
    """Run an enqueue on this thread, as far as it needs no event loop, and the rest as `run_with_connection`.

    A middleware may need an event loop, and under gevent a thread must not wait for a socket.
    """
    refuse_on_loop(async_form, call)
    if handle.enqueue_middleware is not None or gevent_has_patched():
        return run_with_connection(handle, async_form, call)
    opened = handle.opened_on(handle.loop or BACKGROUND.loop())
    target = thread_enqueues(opened, handle.ensure_open)
    if target is None:
        return run_with_connection(handle, async_form, call)
    result, rest = start_on_thread(call, target)
    return cast("T", result) if rest is None else run_with_connection(handle, async_form, rest)
