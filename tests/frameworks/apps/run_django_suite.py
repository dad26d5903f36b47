"""Runs Django's own tests of task backends against the backend of dibs: python run_django_suite.py SOURCE.

SOURCE is the unpacked source distribution of the installed Django, 6.0 or later. Its tests in `tests/tasks`
name Django's two backends: one that keeps tasks, and one that runs each task at once. This program puts
dibs in the place of both, on the storage in memory, and runs all tests except those of EXCEPT.
"""

# ruff: noqa: T201 - a program of the tests

from __future__ import annotations

import sys
import unittest
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import django
from django.conf import settings
from django.tasks.backends import dummy, immediate
from django.test.runner import DiscoverRunner

SOURCE: Final = Path(sys.argv[1])
#: An empty list in the settings means any queue to Django. The workers of dibs must know the names.
QUEUES: Final = ["default", "unknown_queue"]
#: Test -> why it cannot pass with dibs.
EXCEPT: Final = {
    "DummyBackendTestCase.test_refresh_result": "it writes to a list in the backend",
    "DummyBackendTestCase.test_refresh_result_async": "it writes to a list in the backend",
    "ImmediateBackendTestCase.test_complex_return_value": "it wants Django's words in the traceback",
    "ImmediateBackendTestCase.test_throws_keyboard_interrupt": "a worker outlives its handlers",
    "ImmediateBackendTestCase.test_cannot_get_result": "dibs keeps results",
    "ImmediateBackendTestCase.test_cannot_refresh_result": "dibs keeps results",
    "ImmediateBackendTestCase.test_cannot_pass_run_after": "dibs has start times",
}

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["dibs.django_tasks"],
    USE_TZ=True,
)
django.setup()

from dibs.django_tasks.backend import DibsBackend  # noqa: E402 - needs the settings


class KeepingBackend(DibsBackend):
    """The backend of dibs in memory, with the two names that Django's tests use of their own."""

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        options = {**params.get("OPTIONS", {}), "url": f"memory:{type(self).__name__}", "enqueue": "now"}
        super().__init__(alias, {**params, "QUEUES": params.get("QUEUES") or QUEUES, "OPTIONS": options})
        self.options = params.get("OPTIONS", {})

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = super().enqueue(task, args, kwargs)
        # The tests compare this result with a later one, which has the time of the enqueue by the storage's
        # clock, in milliseconds.
        result.refresh()
        return result

    @property
    def results(self) -> list[Any]:
        """Return the results of waiting tasks, also on the thread of a running event loop."""
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(self._read_results).result()

    def _read_results(self) -> list[Any]:
        queues = [self.app.queue(name).sync for name in self.queues]
        return [
            self.get_result(f"{queue.name}/{job.id}") for queue in queues for job in queue.list("waiting")
        ]

    def clear(self) -> None:
        for result in self.results:
            queue, _, id = result.id.rpartition("/")
            self.app.queue(queue).sync.cancel(id)
            self.app.queue(queue).sync.clear()


class RunningBackend(KeepingBackend):
    """A backend that runs each task before `enqueue` returns, as Django's ImmediateBackend does."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        result = DibsBackend.enqueue(self, task, args, kwargs)
        self.app.sync.work(sorted(self.queues), until="empty", handle_signals=False)
        result.refresh()
        return result


def each(suite: unittest.TestSuite) -> Iterator[unittest.TestCase]:
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from each(test)
        else:
            yield test


def main() -> int:
    dummy.DummyBackend, immediate.ImmediateBackend = KeepingBackend, RunningBackend
    sys.path.insert(0, str(SOURCE / "tests"))
    # Their settings name the classes by the path of Django, so the classes are found there.
    names = ["tasks.test_dummy_backend", "tasks.test_immediate_backend"]
    found = [*each(unittest.defaultTestLoader.loadTestsFromNames(names))]
    chosen = [test for test in found if ".".join(test.id().split(".")[-2:]) not in EXCEPT]
    print(f"Django {django.__version__}: {len(chosen)} of {len(found)} tests")
    runner = DiscoverRunner(verbosity=1)
    databases = runner.setup_databases()
    result = runner.run_suite(unittest.TestSuite(chosen))
    runner.teardown_databases(databases)
    return 0 if result.wasSuccessful() and result.testsRun == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
