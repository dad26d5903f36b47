"""A warning while a cluster has no free slot for the tasks of this process."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger: Final = logging.getLogger("dibs.spark")

#: Seconds without a running task until the first warning, and between two of them.
PATIENCE: Final = 20.0
#: Seconds between two looks at the tasks.
_INTERVAL: Final = 1.0


@contextmanager
def warn_without_slots(spark: SparkSession) -> Iterator[None]:
    """Log a warning every PATIENCE seconds in which stages of Spark wait and no task runs."""
    done = Event()
    context = spark.sparkContext
    thread = Thread(target=_watch, args=(context, done), name="dibs-spark-slots", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _watch(context: Any, done: Event) -> None:
    tracker = context.statusTracker()
    since = time.monotonic()
    while not done.wait(_INTERVAL):
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        waits = [stage for stage in stages if stage is not None]
        if not waits or any(stage.numActiveTasks or stage.numCompletedTasks for stage in waits):
            since = time.monotonic()
        # Not the sum of the intervals, which are longer on a busy driver.
        elif time.monotonic() - since >= PATIENCE:
            since = time.monotonic()
            logger.warning(
                "%s runs no task of this application since %g s: the cluster has no free cores or memory for "
                "its executors. Check its web page, spark.executor.memory and spark.cores.max",
                context.master,
                PATIENCE,
            )
