"""The page about upgrades names the layouts of the code, and the stored places have all layouts."""

from __future__ import annotations

import gzip
import io
import re
import tarfile
from pathlib import Path

import msgspec

from dibs.storage.file.directory import FORMAT
from dibs.storage.postgres.queries import migrations
from dibs.storage.redis.network.opening import LAYOUT
from tests.source import PROJECT
from tests.storage.stored_places.archives import NAME

STORED = PROJECT / "tests/storage/stored_places"
PAGE = (PROJECT / "docs/explanation/upgrades.md").read_text("utf-8")


def stated(storage: str) -> int:
    found = re.search(rf"^\| {storage} \|.*?\| (\d+) \|", PAGE, re.MULTILINE)
    assert found is not None
    return int(found[1])


def read(name: str) -> list[bytes]:
    return [gzip.decompress(path.read_bytes()) for path in sorted(Path(STORED).glob(f"*/{name}.gz"))]


def format_of(packed: bytes) -> int:
    with tarfile.open(fileobj=io.BytesIO(packed)) as folder:
        file = folder.extractfile("format")
        assert file is not None
        return int(msgspec.json.decode(file.read())["format"])


def test_the_page_names_the_layouts_of_the_code() -> None:
    assert (FORMAT, LAYOUT) == (stated("file"), stated("Redis"))
    assert migrations()[-1].number == stated("Postgres")


def test_every_format_of_files_is_stored() -> None:
    assert set(range(1, FORMAT + 1)) == set(map(format_of, read("file")))


def test_every_layout_of_redis_is_stored() -> None:
    key = f"{NAME}:version".encode()
    numbers = {
        int(content)
        for packed in read("redis")
        for name, _, content in msgspec.msgpack.decode(packed)
        if name == key
    }

    assert set(range(1, LAYOUT + 1)) == numbers


def test_an_early_and_a_late_layout_of_postgres_are_stored() -> None:
    """Migrations run one after another, so the early place passes through all later ones."""
    applied = re.compile(rf"INSERT INTO {NAME}\.migrations VALUES \((\d+),")
    numbers = {max(map(int, applied.findall(packed.decode()))) for packed in read("postgresql")}

    assert {18, 26, 30} <= numbers
