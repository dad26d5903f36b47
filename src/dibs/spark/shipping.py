"""Functions that Spark sends to executors as code, so that an executor without dibs can say so.

Spark pickles a function or an object of a module as a name, and the executor imports the module. If the
module is missing there, Spark reports an error of unpickling. A nested function is pickled as code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


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
