"""Tests for gevent and eventlet, which replace Python's threads, sockets and queues by cooperative ones."""

from __future__ import annotations

import sys


def gevent_has_patched() -> bool:
    """Return whether gevent.monkey has patched Python's threads or sockets: greenlets may be waiting then."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(
        monkey.is_module_patched("threading") or monkey.is_module_patched("socket")
    )


def eventlet_has_patched() -> bool:
    """Return whether eventlet.monkey_patch has replaced Python's threads."""
    patcher = sys.modules.get("eventlet.patcher")
    return patcher is not None and bool(patcher.is_monkey_patched("thread"))
