"""The entry of INSTALLED_APPS, which adds the command `manage.py dibs_worker`."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig as _AppConfig

AppConfig: Any = _AppConfig


class DibsTasksConfig(AppConfig):  # type: ignore[misc]  # Django has no types
    """`"dibs.django_tasks"` in INSTALLED_APPS."""

    name = "dibs.django_tasks"
    label = "dibs_tasks"
    verbose_name = "dibs"
