"""The page about upgrades names the layouts of the code."""

from __future__ import annotations

import re

from dibs.storage.file.directory import FORMAT
from dibs.storage.postgres.queries import migrations
from dibs.storage.redis.network.opening import LAYOUT
from tests.source import PROJECT


def test_the_page_names_the_layouts_of_the_code() -> None:
    page = (PROJECT / "docs/explanation/upgrades.md").read_text("utf-8")
    rows = re.findall(r"^\| (file|Redis|Postgres) \|.*?\| (\d+) \|", page, re.MULTILINE)
    assert {"file": FORMAT, "Redis": LAYOUT, "Postgres": migrations()[-1].number} == {
        storage: int(number) for storage, number in rows
    }
