"""The URL of the storage comes from the argument, $DIBS_URL or pyproject.toml; `redact_url` hides secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dibs import ConfigurationError, Dibs, NoStorage
from dibs.client.connection.url import resolve_url
from dibs.storage.addresses import redact_url


@pytest.fixture(autouse=True)
def project_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a pyproject.toml without a URL; change to a folder below, unset $DIBS_URL."""
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n", "utf-8")
    inner = tmp_path / "src" / "deep"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    monkeypatch.delenv("DIBS_URL", raising=False)
    return tmp_path


def project(root: Path, url: str) -> None:
    (root / "pyproject.toml").write_text(f"[tool.dibs]\nurl = {url}\n", "utf-8")


def test_an_explicit_url_takes_precedence(project_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(project_root, "'memory:project'")
    monkeypatch.setenv("DIBS_URL", "memory:variable")

    assert resolve_url("memory:given") == "memory:given"
    assert resolve_url(None) == "memory:variable"


def test_the_nearest_pyproject_is_used_without_url_and_variable(project_root: Path) -> None:
    project(project_root, "'memory:project'")

    assert resolve_url(None) == "memory:project"


def test_a_nearer_project_without_a_url_ends_the_search(project_root: Path) -> None:
    project(project_root, "'memory:project'")
    (project_root / "src" / "pyproject.toml").write_text("[project]\nname = 'inner'\n", "utf-8")

    with pytest.raises(NoStorage):
        resolve_url(None)


def test_a_relative_file_url_is_relative_to_the_project_folder(project_root: Path) -> None:
    project(project_root, "'file:./jobs?fsync=true'")

    assert resolve_url(None) == f"file:{project_root}/jobs?fsync=true"


@pytest.mark.parametrize("url", ["5", "oh no"])
def test_the_error_for_an_invalid_pyproject_names_the_file(project_root: Path, url: str) -> None:
    project(project_root, url)

    with pytest.raises(ConfigurationError, match=r"pyproject\.toml"):
        resolve_url(None)


def test_without_any_url_the_error_names_the_three_sources() -> None:
    with pytest.raises(NoStorage, match="DIBS_URL"):
        resolve_url(None)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://user:secret@host:1/0?password=secret", "redis://host:1/0"),
        ("redis://user:secret@[::1]:1,b:2/0", "redis://[::1]:1,b:2/0"),
        ("postgresql://u:p@ss:secret@h/db#secret", "postgresql://..."),
        ("redis://u:se?cret@h/0", "redis://..."),
        ("redis://u:se/cret@h/0", "redis://..."),
        ("redis://u:secret", "redis://..."),
        ("redis:u:secret@h", "redis:..."),
        ("memory:mine", "memory:mine"),
        ("file:./jobs?fsync=true", "file:./jobs"),
        ("secret", "..."),
    ],
)
def test_secrets_are_not_shown(url: str, shown: str) -> None:
    assert redact_url(url) == shown
    assert "secret" not in repr(Dibs(url))
