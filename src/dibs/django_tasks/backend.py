"""The backend of Django's task API that keeps tasks as jobs of dibs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from dibs.app import Dibs
from dibs.client.options.arguments import new_id
from dibs.client.options.job_settings import JobSettings, Retention
from dibs.django import DEFAULT_ALIAS
from dibs.django_tasks import api
from dibs.django_tasks.results import enqueued_result, result_id, split_result_id, stored_result
from dibs.django_tasks.task_apps import TASKS, task_app
from dibs.errors import DibsError

#: The values of OPTIONS["enqueue"].
ENQUEUE_MODES: Final = ("in_transaction", "on_commit", "now")
#: Seconds that results are kept without OPTIONS["retention"]: one day.
RESULT_AGE: Final = 86_400


class DibsBackend(api.BaseTaskBackend):  # type: ignore[misc]  # Django has no types
    """Keeps tasks in the storage of OPTIONS["url"], by default the Postgres database of the project.

    OPTIONS may have `enqueue` ("in_transaction", "on_commit" or "now"), `retention` (seconds that results
    are kept) and the settings of handlers, such as `timeout` and `max_retries`. Raises ImproperlyConfigured
    for other options and for bad values.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        super().__init__(alias, params)
        options = dict(self.options)
        url = options.pop("url", f"django:{DEFAULT_ALIAS}")
        self._database = _database_of(url)
        self._mode = options.pop("enqueue", "in_transaction" if self._database else "on_commit")
        self._retention = Retention(
            completed=options.pop("retention", RESULT_AGE), keep_payload=("completed", "failed", "cancelled")
        )
        self._check_settings()
        try:
            # Django's API has no retries, so a task fails at its first error unless the project sets them.
            self.app: Dibs = task_app(alias, url, self.queues, {"max_retries": 0, **options})
        except DibsError as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]['OPTIONS']: {error}") from error

    def _check_settings(self) -> None:
        if not self.queues:
            raise ImproperlyConfigured(
                f"TASKS[{self.alias!r}]['QUEUES'] is empty; name the queues of the tasks, because a worker "
                "must know them before it starts"
            )
        if self._mode not in ENQUEUE_MODES:
            raise ImproperlyConfigured(
                f"TASKS[{self.alias!r}]['OPTIONS']['enqueue'] is {self._mode!r}; it must be one of "
                f"{', '.join(ENQUEUE_MODES)}"
            )
        if self._mode == "in_transaction" and self._database is None:
            raise ImproperlyConfigured(
                f"TASKS[{self.alias!r}]['OPTIONS']['enqueue'] is 'in_transaction', which needs a URL of the "
                "form django:ALIAS; use 'on_commit' with other storages"
            )

    def validate_task(self, task: Any) -> None:
        """Check a task, and make it known to the workers of this process."""
        super().validate_task(task)
        TASKS[task.module_path] = task

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Enqueue a task and return its result, in the mode of OPTIONS["enqueue"].

        With `on_commit` inside a transaction, the job exists after the commit, and `enqueued_at` is None.
        """
        self.validate_task(task)
        id = new_id()
        data = {"task": task.module_path, "args": list(args), "kwargs": dict(kwargs)}
        # Refuses arguments that are no JSON before anything is written.
        result = enqueued_result(task, result_id(task.queue_name, id), data, None)
        send = partial(self._send, task, id, data, result)
        connection = connections[self._database or DEFAULT_ALIAS]
        # A closed connection has no transaction, and Django's on_commit would open it.
        if self._mode == "on_commit" and connection.connection is not None:
            transaction.on_commit(send, using=connection.alias)
        elif self._mode == "in_transaction" and connection.in_atomic_block:
            send(connection=connection)
        else:
            send()
        return result

    def _send(self, task: Any, id: str, data: Mapping[str, Any], result: Any, connection: Any = None) -> None:
        settings: JobSettings = {"id": id, "priority": task.priority, "retention": self._retention}
        if task.run_after is not None:
            settings["run_at"] = _aware(task.run_after)
        queue = self.app.queue(task.queue_name).sync
        ticket = queue.enqueue(data, connection=connection, **settings)
        if ticket.verdict == "dropped":  # as for a job that was removed: `get_result` does not find it
            return
        object.__setattr__(result, "enqueued_at", datetime.now(UTC))
        api.task_enqueued.send(type(self), task_result=result)

    def get_result(self, result_id: str) -> Any:
        """Return the result with an id. Raises TaskResultDoesNotExist, also after its retention."""
        queue, id = split_result_id(result_id)
        if queue not in self.queues:
            raise api.TaskResultDoesNotExist(result_id)
        status = self.app.queue(queue).sync.get(id)
        task = None if status is None or status.data is None else TASKS.get(status.data.get("task"))
        if status is None or task is None:
            raise api.TaskResultDoesNotExist(result_id)
        return stored_result(task, status)


def _database_of(url: str) -> str | None:
    """Return the alias of the database in a django: URL, or None for another URL."""
    scheme, _, rest = str(url).partition(":")
    return (rest.partition("?")[0] or DEFAULT_ALIAS) if scheme == "django" else None


def _aware(moment: datetime) -> datetime:
    """Return a time with a time zone; with USE_TZ = False Django's times are those of TIME_ZONE."""
    from django.utils.timezone import is_aware, make_aware  # noqa: PLC0415 - reads the settings

    return moment if is_aware(moment) else make_aware(moment)
