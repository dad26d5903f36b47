"""A small batch size for reap and prune, so that a test sees more than one batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest.mock import patch


@contextmanager
def batches_of(size: int, module: ModuleType) -> Iterator[None]:
    with patch.object(module, "BATCH_SIZE", size):
        yield
