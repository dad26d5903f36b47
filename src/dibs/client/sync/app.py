"""The blocking form of an app."""

from __future__ import annotations

from typing import Any, Final

from dibs.app import Dibs
from dibs.client.sync.background_loop import run_on_this_thread
from dibs.client.sync.flow import (
    BlockingBatch,
    BlockingChain,
    BlockingFlow,
    BlockingStoredBatch,
    BlockingStoredFlow,
)
from dibs.client.sync.queue import BlockingQueue
from dibs.client.sync.task import BlockingTask
from dibs.client.sync.twin import Attribute, BlockingContext, blocking, each, passing, reads


class BlockingDibs(BlockingContext[Dibs]):
    """Blocking form of Dibs, returned by its property `sync`."""

    url: Attribute[str] = reads("url")
    open: Final = blocking(Dibs.open)
    close: Final = blocking(Dibs.close)
    queue: Final = passing(Dibs.queue, BlockingQueue)
    queues: Final = blocking(Dibs.queues, each(BlockingQueue))
    workers: Final = blocking(Dibs.workers)
    get_task: Final = passing(Dibs.get_task, BlockingTask[Any, Any])
    flow: Final = passing(Dibs.flow, BlockingFlow)
    chain: Final = passing(Dibs.chain, BlockingChain)
    get_flow: Final = passing(Dibs.get_flow, BlockingStoredFlow)
    batch: Final = passing(Dibs.batch, BlockingBatch)
    get_batch: Final = passing(Dibs.get_batch, BlockingStoredBatch)
    work: Final = blocking(Dibs.work, runner=run_on_this_thread)
    stop: Final = passing(Dibs.stop)
