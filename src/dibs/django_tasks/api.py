"""The task API: `django.tasks` of Django 6, or the package `django-tasks` on earlier versions of Django."""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

from dibs.errors import ConfigurationError


def _find_package() -> str:
    for name in ("django.tasks", "django_tasks"):
        try:
            import_module(name)
        except ImportError:
            continue
        return name
    raise ConfigurationError(
        "dibs.django_tasks needs the task API of Django: upgrade to Django 6, or pip install django-tasks"
    )


PACKAGE: Final = _find_package()
_base: Any = import_module(f"{PACKAGE}.base")
_signals: Any = import_module(f"{PACKAGE}.signals")

BaseTaskBackend: Any = import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
TaskResultDoesNotExist: Any = import_module(f"{PACKAGE}.exceptions").TaskResultDoesNotExist
Task, TaskContext, TaskError = _base.Task, _base.TaskContext, _base.TaskError
TaskResult, TaskResultStatus = _base.TaskResult, _base.TaskResultStatus
task_enqueued, task_started = _signals.task_enqueued, _signals.task_started
task_finished = _signals.task_finished
#: The backends by their alias in settings.TASKS.
task_backends: Any = import_module(PACKAGE).task_backends
