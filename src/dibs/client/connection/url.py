"""The URL of the storage, and the sources from which it comes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dibs.errors import ConfigurationError, NoStorage

if TYPE_CHECKING:
    from pathlib import Path

#: Environment variable with the URL of the storage.
URL_VARIABLE = "DIBS_URL"


def resolve_url(url: str | None) -> str:
    """Return `url`, else $DIBS_URL, else `url` under [tool.dibs] in the nearest pyproject.toml.

    Raises NoStorage if there is no URL, ConfigurationError if pyproject.toml is invalid.
    """
    found = url or os.environ.get(URL_VARIABLE) or _find_project_url()
    if not found:
        raise NoStorage
    return found


def _find_project_url() -> str | None:
    from pathlib import Path  # noqa: PLC0415 - an app with a URL does not pay for this import

    current = Path.cwd()
    for folder in (current, *current.parents):
        project = folder / "pyproject.toml"
        if project.is_file():
            return _read_project_url(project)
    return None


def _read_project_url(project: Path) -> str | None:
    import tomllib  # noqa: PLC0415 - as for pathlib in `_find_project_url`

    try:
        tool = tomllib.loads(project.read_text("utf-8")).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{project} is not valid TOML: {error}") from error
    url = tool.get("dibs", {}).get("url")
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(
            f"{project}: url under [tool.dibs] is of type {type(url).__name__}; it must be a string"
        )
    return _anchor_file_url(project, url) if url else None


def _anchor_file_url(project: Path, url: str) -> str:
    """Return `url`, with the path of a relative file: URL under the folder of pyproject.toml, `project`.

    All processes of a project then use the same directory, from every working directory.
    """
    scheme, _, path = url.partition(":")
    if scheme != "file" or path.startswith(("/", "~")):
        return url
    return f"file:{project.parent}/{path.removeprefix('./')}"
