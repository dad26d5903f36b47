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
    from pyspark.sql import SparkSession


def shipped(name: str, *arguments: Any) -> Callable[[Any], Iterator[Any]]:
    """Return a function for `mapPartitions` that calls a generator function, "module:function"."""
    load = _loader()

    def call(_rows: Any) -> Iterator[Any]:
        yield from load(name)(*arguments)

    return call


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
