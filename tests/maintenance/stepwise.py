"""Lets a duty take small steps, so that a test sees more than one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch


@contextmanager
def stepping(duty: ModuleType, step: int) -> Iterator[None]:
    with patch.object(duty, "STEP", step):
        yield
