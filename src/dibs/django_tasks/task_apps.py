"""The tasks of a Django project by their names, and the app of dibs for each backend of settings.TASKS.

A payload contains the name of a task. A worker looks the name up among the tasks that the project has
declared, so a payload never decides what Python imports.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from dibs.app import Dibs
from dibs.client.calls.current_job import current_job
from dibs.client.calls.handler import Ending
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.django import close_old_connections
from dibs.django_tasks import api
from dibs.django_tasks.results import ended_result, running_result
from dibs.errors import JobFailed

#: The declared tasks by module path, such as "shop.tasks.send". Django's `@task` validates each of them.
TASKS: Final[dict[str, Any]] = {}
#: The apps by the alias of their backend. Django makes a backend for each thread, and all share an app.
_apps: Final[dict[str, tuple[object, Dibs]]] = {}
_lock: Final = threading.Lock()


def task_app(alias: str, url: str, queues: set[str], settings: Mapping[str, Any]) -> Dibs:
    """Return the app of a backend, with a handler for each of its queues.

    Another URL, set of queues or settings, as in a test that overrides settings.TASKS, gives a new app.
    Raises Refused for a setting that handlers do not have.
    """
    key = (url, frozenset(queues), repr(sorted(settings.items())))
    with _lock:
        known, app = _apps.get(alias, (None, None))
        if app is None or known != key:
            app = _declare_app(url, queues, settings)
            _apps[alias] = (key, app)
        return app


def _declare_app(url: str, queues: set[str], settings: Mapping[str, Any]) -> Dibs:
    app = Dibs(url)
    app.middleware(run=close_old_connections)
    for name in sorted(queues):
        queue = app.queue(name)
        # Django promises an error for a result that cannot be stored.
        queue.handler(**{"strict_results": True, **settings})(run_task)
        queue.after(finish_task)
    return app


def find_task(path: str) -> Any:
    """Return a declared task. Raises PayloadMismatch, after which another worker tries the job."""
    try:
        return TASKS[path]
    except KeyError:
        raise PayloadMismatch(
            f"this worker knows no task {path!r}; declare it in a module `tasks` of an installed app, or "
            "import its module in one"
        ) from None


def run_task(data: dict[str, Any]) -> Any:
    """Run a task of Django on a thread. An async task gets an event loop of its own, as Django does it."""
    task = find_task(data["task"])
    result = running_result(task, current_job(), data)
    api.task_started.send(type(task.get_backend()), task_result=result)
    context = [api.TaskContext(task_result=result)] if task.takes_context else []
    return task.call(*context, *data["args"], **data["kwargs"])


def finish_task(ending: Ending) -> None:
    """Send Django's signal at the end of a task. A retried run sends none."""
    data = ending.data
    if isinstance(data, dict) and (task := TASKS.get(data.get("task", ""))) is not None:
        result = ended_result(task, ending, data)
        send = partial(api.task_finished.send, type(task.get_backend()), task_result=result)
        if not result.errors:
            send()
            return
        # Django's receiver logs the exception that is being handled. The one of the handler may have been
        # raised in another process, so its traceback is text.
        try:
            raise JobFailed(  # noqa: TRY301 - raised here to be the current exception
                result.errors[0].traceback, queue=ending.queue, id=ending.id, error=ending.error
            )
        except JobFailed:
            send()
