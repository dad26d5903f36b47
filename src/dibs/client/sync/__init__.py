"""Blocking forms of the async handles, and the background event loop that runs their calls.

The package dibs loads `BlockingQueue` and the other blocking classes at their first use, so that
async programs never import these modules.
"""

from importlib import import_module
from typing import Any, Final

#: Blocking class -> its module in this package.
MODULES: Final = {
    "BlockingClaim": "claim",
    "BlockingDibs": "app",
    "BlockingFeed": "feed",
    "BlockingListing": "listing",
    "BlockingQueue": "queue",
    "BlockingReceiver": "receiver",
    "BlockingTask": "task",
    "BlockingTaskEnqueuer": "task",
    "BlockingTicket": "ticket",
}


def __getattr__(name: str) -> Any:
    """Import the module of a blocking class at its first use, and return the class.

    The package dibs uses this function as its own `__getattr__`. Raises AttributeError for other names.
    """
    if name not in MODULES:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
