"""Spark's executors: sending code to them, and reading their memory and their free slots.

Spark pickles a function or an object of a module as a name, and the executor imports the module. If the
module is missing there, Spark reports an error of unpickling. A nested function is pickled as code.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def map_partitions(rows: DataFrame, name: str, *arguments: Any) -> list[bytes]:
    """Call "module:function" with the Arrow batches of each partition and `arguments`, in a task each.

    Return the bytes that the calls return, in any order. `mapInArrow` works over Spark Connect, too, unlike
    the partitions of an RDD.
    """
    load = _loader()

    def call(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa  # noqa: PLC0415 - see restore

        yield pa.RecordBatch.from_pydict({"answer": [load(name)(batches, *arguments)]})

    with warn_without_slots(rows.sparkSession):
        return [bytes(row.answer) for row in rows.mapInArrow(call, "answer binary").collect()]


def is_connected(spark: SparkSession) -> bool:
    """Return whether the session is a client of Spark Connect, which has no `sparkContext`."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def count_slots(spark: SparkSession) -> int:
    """Return the number of tasks that Spark runs at once."""
    if not is_connected(spark):
        return spark.sparkContext.defaultParallelism
    from pyspark.sql import functions as f  # noqa: PLC0415 - takes a second

    # The partitions of a range are as many. Spark Connect has no call that tells the number.
    return spark.range(0, 1 << 20).select(f.spark_partition_id()).distinct().count()


class Shipped:
    """A base class of objects that Spark pickles with cloudpickle and sends to executors."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Spark's own serializer, in which Spark sends this object, too.
        from pyspark.serializers import CloudPickleSerializer  # noqa: PLC0415

        load = _loader()

        def restore(name: str, state: bytes) -> Any:
            kind = load(name)
            # Imported here, because this function knows only its own code on the executor.
            from pyspark.serializers import CloudPickleSerializer  # noqa: PLC0415

            made = kind.__new__(kind)
            made.__dict__.update(CloudPickleSerializer().loads(state))  # type: ignore[no-untyped-call]
            return made

        kind = type(self)
        state = CloudPickleSerializer().dumps(self.__dict__)  # type: ignore[no-untyped-call]
        return restore, (f"{kind.__module__}:{kind.__qualname__}", state)


def _loader() -> Callable[[str], Any]:
    """Return a nested function that imports an object of dibs, or raises an error with ways to install it."""

    def load(name: str) -> Any:
        import socket  # noqa: PLC0415 - see restore
        import sys  # noqa: PLC0415
        from importlib import import_module  # noqa: PLC0415

        module, _, attribute = name.partition(":")
        try:
            return getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise RuntimeError(
                f"executor {socket.gethostname()}: {sys.executable} has no module {error.name!r}, which dibs "
                "needs in each task. Install dibs[spark] there, and name that Python by PYSPARK_PYTHON or "
                "spark.pyspark.python; or ship it: --py-files dibs.zip, or --archives with an environment"
            ) from None

    return load


def freeze_imports() -> None:
    """Exclude the objects of this process from later garbage collections, if Spark started the process.

    Spark's daemon collects all garbage after each request to a Python process. With the modules of pyspark,
    pyarrow and dibs loaded, this takes 30 to 45 ms of CPU, which is more than most requests take. Only the
    first call has an effect, so cyclic garbage of later requests is still freed.
    """
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    if main is not None and main.name == "pyspark.daemon":
        _freeze_once()


@lru_cache(1)
def _freeze_once() -> None:
    gc.freeze()


logger: Final = logging.getLogger("dibs.spark")

#: Seconds without a running task until the first warning, and between two of them.
PATIENCE: Final = 20.0
#: Seconds between two looks at the tasks.
_INTERVAL: Final = 1.0


@contextmanager
def warn_without_slots(spark: SparkSession) -> Iterator[None]:
    """Log a warning every PATIENCE seconds in which stages of Spark wait and no task runs.

    Spark Connect does not tell a client what its tasks do, so its sessions are not watched.
    """
    if is_connected(spark):
        yield
        return
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
