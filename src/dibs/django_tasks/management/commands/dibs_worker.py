"""`manage.py dibs_worker`: run the tasks of a backend until stopped."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import BaseCommand as _BaseCommand

BaseCommand: Any = _BaseCommand


class Command(BaseCommand):  # type: ignore[misc]  # Django has no types
    """Replaces this process by `dibs worker`, whose options follow `--`."""

    help = "Run the tasks of a backend of settings.TASKS with `dibs worker`."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--backend", default="default", help="Alias in settings.TASKS. Default: default.")
        parser.add_argument("--processes", type=int, help="Number of processes. Default: one for each CPU.")
        parser.add_argument(
            "rest", nargs="*", help="Further options of `dibs worker`, after --: -- --grace 60"
        )

    def handle(self, **options: Any) -> None:
        words = [sys.executable, "-m", "dibs", "worker", f"dibs.django_tasks.worker:{options['backend']}"]
        if options["processes"] is not None:
            words += ["--processes", str(options["processes"])]
        # In place of this process, so that a signal of systemd or of a container reaches the supervisor.
        os.execv(sys.executable, [*words, *options["rest"]])  # noqa: S606 - no shell
