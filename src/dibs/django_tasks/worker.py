"""The apps of the backends as workers import them: `dibs worker dibs.django_tasks.worker:default`.

The name after the colon is the alias of the backend in settings.TASKS. The module sets up Django and imports
the modules `tasks` of all installed apps.
"""

from __future__ import annotations

from typing import Any

import django
from django.apps import apps
from django.utils.module_loading import autodiscover_modules

from dibs.app import Dibs
from dibs.errors import ConfigurationError

if not apps.ready:
    django.setup()
autodiscover_modules("tasks")


def __getattr__(alias: str) -> Dibs:
    """Return the app of a backend. Raises ConfigurationError if the backend is another class."""
    if alias.startswith("__"):
        raise AttributeError(alias)
    from dibs.django_tasks import api  # noqa: PLC0415 - needs the settings
    from dibs.django_tasks.backend import DibsBackend  # noqa: PLC0415

    backend: Any = api.task_backends[alias]
    if not isinstance(backend, DibsBackend):
        raise ConfigurationError(
            f"TASKS[{alias!r}] has the backend {type(backend).__name__}; set its BACKEND to "
            "dibs.django_tasks.backend.DibsBackend"
        )
    return backend.app
