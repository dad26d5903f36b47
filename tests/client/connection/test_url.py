"""Where the jobs live: the URL that counts, and the form of it that may be shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs import ConfigurationError, Dibs, NoStorage
from dibs.client.connection.url import redact_url, resolve_url


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder without a project above it, and no variable."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n", "utf-8")
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    monkeypatch.delenv("DIBS_URL", raising=False)
    return tmp_path


def project(root: Path, url: str) -> None:
    (root / "pyproject.toml").write_text(f"[tool.dibs]\nurl = {url}\n", "utf-8")


def test_the_url_given_counts_first(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(elsewhere, "'memory:project'")
    monkeypatch.setenv("DIBS_URL", "memory:variable")

    assert resolve_url("memory:given") == "memory:given"
    assert resolve_url(None) == "memory:variable"


def test_then_the_nearest_project(elsewhere: Path) -> None:
    project(elsewhere, "'memory:project'")

    assert resolve_url(None) == "memory:project"


def test_a_nearer_project_without_a_url_ends_the_search(elsewhere: Path) -> None:
    project(elsewhere, "'memory:project'")
    (elsewhere / "src" / "pyproject.toml").write_text("[project]\nname = 'inner'\n", "utf-8")

    with pytest.raises(NoStorage):
        resolve_url(None)


def test_a_relative_file_url_of_a_project_is_one_place_from_everywhere(elsewhere: Path) -> None:
    project(elsewhere, "'file:./jobs?fsync=true'")

    assert resolve_url(None) == f"file:{elsewhere}/jobs?fsync=true"


@pytest.mark.parametrize("url", ["5", "oh no"])
def test_a_project_that_cannot_be_read_is_named(elsewhere: Path, url: str) -> None:
    project(elsewhere, url)

    with pytest.raises(ConfigurationError, match=r"pyproject\.toml"):
        resolve_url(None)


def test_nothing_anywhere_says_what_to_do() -> None:
    with pytest.raises(NoStorage, match="DIBS_URL"):
        resolve_url(None)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:1/0?password=secret", "redis://host:1/0"),
        ("postgresql://u:p@ss:secret@h/db#secret", "postgresql://h/db"),
        ("file:./jobs?fsync=true", "file:./jobs"),
        ("secret", "..."),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert "secret" not in repr(Dibs(url))
