"""The application as workers import it: `dibs worker project.worker:app`."""

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()

from project.jobs import app  # noqa: E402

__all__ = ["app"]
