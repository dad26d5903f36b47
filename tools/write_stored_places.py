"""Writes a set of stored places: what this version of dibs stores, for the tests of later versions.

python tools/write_stored_places.py 2026-11      writes tests/storage/stored_places/2026-11; starts servers

Each storage gets the calls of tests/storage/stored_places/story.py, which leave jobs in every state. For each
storage, the set has the packed data and a JSON file with the answers that the storage gives to readers. The
file storage has two places: one with commits alone, and one with a checkpoint.

The test of that folder opens every set. Write a new set before a change of a format. Never write over a set:
it represents the data of users.
"""

# ruff: noqa: INP001, T201 - a script for contributors

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from pathlib import Path

PROJECT = Path(__file__).parent.parent
sys.path.insert(0, str(PROJECT))
sys.path.insert(0, str(PROJECT / "examples/dibs-sqlite/src"))

from dibs.storage import registry  # noqa: E402
from dibs.storage.file import FileStorage  # noqa: E402
from dibs_conformance.servers import find_postgres, start_postgres, start_redis  # noqa: E402
from tests.storage.stored_places.archives import NAME, PLACES, pack  # noqa: E402
from tests.storage.stored_places.contents import contents  # noqa: E402
from tests.storage.stored_places.story import write  # noqa: E402

FOLDER = PROJECT / "tests/storage/stored_places"


async def write_place(url: str, pg_dump: str, target: Path) -> None:
    """Make the calls on a new storage, and write its packed data and its contents beside `target`."""
    async with registry.open_storage(url, clock="manual") as storage:
        story = await write(storage)
        if target.name == "file-checkpoint" and isinstance(storage, FileStorage):
            await storage.compact()
            await story.enqueue("after-checkpoint")
        expected = {
            "now": story.now,
            "leases": story.leases,
            "contents": await contents(storage, story.now),
        }
    target.with_suffix(".gz").write_bytes(pack(url, pg_dump))
    text = json.dumps(expected, indent=1, ensure_ascii=False, sort_keys=True)
    target.with_suffix(".json").write_text(f"{text}\n", "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", help="the name of the new set, such as 2026-11")
    target = FOLDER / parser.parse_args().name
    if target.exists():
        parser.error(f"{target} exists; a set is never written again: choose another name")
    registry.BUILT_IN["sqlite"] = "dibs_sqlite:open_url"
    pg_dump = str(Path(find_postgres().path) / "pg_dump")
    target.mkdir()
    with tempfile.TemporaryDirectory() as folder, start_redis() as redis, start_postgres() as postgres:
        urls = {
            "file": f"file:{folder}/jobs",
            "file-checkpoint": f"file:{folder}/checkpoint",
            "sqlite": f"sqlite:{folder}/jobs.db",
            "redis": f"{redis.url}?prefix={NAME}",
            "postgresql": f"{postgres.url}?schema={NAME}",
        }
        for name in PLACES:
            asyncio.run(write_place(urls[name], pg_dump, target / name))
            print(f"wrote {target / name}")


if __name__ == "__main__":
    main()
