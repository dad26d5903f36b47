"""The registry: URLs, their storages, and the errors for bad URLs and options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dibs.errors import UnknownScheme
from dibs.storage import registry
from dibs.storage.file import FileStorage
from dibs.storage.memory import MemoryStorage
from dibs.storage.protocol import Storage


@pytest.mark.parametrize(("url", "kind"), [("memory:", MemoryStorage), ("MEMORY:x", MemoryStorage)])
def test_a_scheme_of_ours_is_known_without_asking(url: str, kind: type) -> None:
    assert kind is type(registry.open_storage(url))


def test_a_file_url_names_its_path(tmp_path: Path) -> None:
    """The path is relative to the working directory or absolute. Only opening creates the directory."""
    storage = registry.open_storage(f"file://{tmp_path}/jobs")

    assert isinstance(storage, FileStorage)
    assert f"file:{tmp_path}/jobs" == storage.url
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize("url", ["memory:", "file:./x"])
def test_open_storage_returns_a_storage(url: str) -> None:
    assert isinstance(registry.open_storage(url), Storage)


def test_an_unknown_scheme_names_the_known_schemes_and_the_entry_points() -> None:
    with pytest.raises(UnknownScheme) as caught:
        registry.open_storage("carrier-pigeon:coop")

    assert "file:" in str(caught.value)
    assert "memory:" in str(caught.value)
    assert "package that registers 'carrier-pigeon'" in str(caught.value)


@pytest.mark.parametrize("text", ["s3cr3t", ":s3cr3t", "", "/s3cr3t/path"])
def test_an_error_does_not_repeat_text_that_is_not_a_url(text: str) -> None:
    """The text may be a password."""
    with pytest.raises(UnknownScheme) as caught:
        registry.open_storage(text)

    assert "s3cr3t" not in str(caught.value)
    assert "file:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "flag"), [("1", True), ("", True), ("YES", True), ("off", False), ("0", False)]
)
def test_a_flag_in_a_url_is_a_word(text: str, flag: bool) -> None:  # noqa: FBT001
    assert flag is registry.read_flag(text)


def test_a_storage_is_imported_when_it_is_opened() -> None:
    """An application imports only the drivers of its storages."""
    program = "import sys, dibs.storage.registry; print({'watchdog', 'filelock'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert "set()\n" == found.stdout
