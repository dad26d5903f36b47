"""The storage of examples/dibs-lmdb."""

from __future__ import annotations

import pytest

from tests.examples.package import PackageTests

pytest.importorskip("lmdb")


class TestLmdb(PackageTests):
    example, url_end = "dibs-lmdb", "?fsync=0"
