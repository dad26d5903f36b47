"""Blocking forms of the async handles, and the background event loop that runs their calls.

The package dibs loads `BlockingQueue` and the other blocking classes at their first use, so that
async programs never import these modules. It loads the classes of flows in the same way.
"""

from importlib import import_module
from typing import Any, Final

#: Class of flows -> its module.
FLOW_MODULES: Final = {
    "Batch": "dibs.flow.batch.batch",
    "BatchSummary": "dibs.flow.batch.plan",
    "Chain": "dibs.flow.builder",
    "Flow": "dibs.flow.builder",
    "FlowStatus": "dibs.flow.stored_flow",
    "MemberResult": "dibs.flow.batch.stored_batch",
    "Node": "dibs.flow.context",
    "NodeStatus": "dibs.flow.stored_flow",
    "StoredBatch": "dibs.flow.batch.stored_batch",
    "StoredFlow": "dibs.flow.stored_flow",
}
#: Blocking class -> its module in this package.
MODULES: Final = {
    "BlockingBatch": "flow",
    "BlockingChain": "flow",
    "BlockingClaim": "claim",
    "BlockingDibs": "app",
    "BlockingFeed": "claim",
    "BlockingFlow": "flow",
    "BlockingListing": "queue",
    "BlockingQueue": "queue",
    "BlockingReceiver": "claim",
    "BlockingSchedules": "queue",
    "BlockingStoredBatch": "flow",
    "BlockingStoredFlow": "flow",
    "BlockingTask": "task",
    "BlockingTaskEnqueuer": "task",
    "BlockingTicket": "queue",
}


def __getattr__(name: str) -> Any:
    """Import the module of a blocking class, or a class of flows, at its first use, and return the class.

    The package dibs uses this function as its own `__getattr__`. Raises AttributeError for other names.
    """
    if name in FLOW_MODULES:
        return getattr(import_module(FLOW_MODULES[name]), name)
    if name not in MODULES:
        raise AttributeError(f"module 'dibs' has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)
