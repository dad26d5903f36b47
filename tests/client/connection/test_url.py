"""The URL of the storage comes from the argument, $DIBS_URL or pyproject.toml; `redact_url` hides secrets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dibs import ConfigurationError, Dibs, NoStorage, open_storage
from dibs.client.connection.storage_handle import resolve_url
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


@pytest.mark.parametrize("given", [True, False])
def test_a_relative_file_url_stays_relative_to_the_folder_of_its_first_use(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: bool,  # noqa: FBT001
) -> None:
    if not given:
        monkeypatch.setenv("DIBS_URL", "file:./jobs?poll=2")
    here = Path.cwd()
    app = Dibs("file:./jobs?poll=2" if given else None)
    first = app.url
    monkeypatch.chdir(tmp_path)

    assert first == app.url == f"file:{here}/jobs?poll=2"


def test_a_folder_that_a_url_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The question mark would begin the options, and the jobs would go to another folder."""
    (tmp_path / "what?").mkdir()
    monkeypatch.chdir(tmp_path / "what?")

    with pytest.raises(ConfigurationError, match="question mark"):
        resolve_url("file:./jobs")


@pytest.mark.parametrize(
    "url", ["memory:", "file:/tmp/jobs", "redis://h/0", "postgresql://u:secret@h/d", "5"]
)
@pytest.mark.parametrize("character", ["\n", "\r\n", "\0", "\x85", "\u2028"])
@pytest.mark.parametrize("place", ["argument", "variable", "project", "storage"])
def test_a_url_with_a_line_break_is_refused(
    project_root: Path, monkeypatch: pytest.MonkeyPatch, url: str, character: str, place: str
) -> None:
    """A line break at the end, as in a secret of Kubernetes, would name another folder or server."""
    bad = url + character
    if place == "variable" and "\0" in bad:
        pytest.skip("no variable holds this character")
    if place == "variable":
        monkeypatch.setenv("DIBS_URL", bad)
    elif place == "project":
        project(project_root, json.dumps(bad))

    def use() -> object:
        if place == "storage":
            return open_storage(bad)
        return Dibs(bad if place == "argument" else None).url

    with pytest.raises(ConfigurationError, match=f"control .* at position {len(url) + 1}") as caught:
        use()
    assert "secret" not in str(caught.value)


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
