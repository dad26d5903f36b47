"""The URL of the storage, and the sources from which it comes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dibs.errors import ConfigurationError, NoStorage
from dibs.storage.addresses import absolute_url, check_url

if TYPE_CHECKING:
    from pathlib import Path

#: Environment variable with the URL of the storage.
URL_VARIABLE = "DIBS_URL"


def working_folder() -> str:
    """Return the working directory; "" if it was removed, where only an absolute path can be used."""
    try:
        return os.getcwd()  # noqa: PTH109 - an app does not import pathlib for this
    except FileNotFoundError:
        return ""


def resolve_url(url: str | None, folder: str | None = None) -> str:
    """Return `url`, else $DIBS_URL, else `url` under [tool.dibs] in the nearest pyproject.toml.

    The path of a file: URL becomes absolute: a relative one is below `folder`, by default the working
    directory. Raises NoStorage if there is no URL, ConfigurationError for a URL with a line break and for an
    invalid pyproject.toml.
    """
    folder = working_folder() if folder is None else folder
    found = url or os.environ.get(URL_VARIABLE) or _find_project_url(folder)
    if not found:
        raise NoStorage
    check_url(found)
    return absolute_url(found, folder)


def _find_project_url(start: str) -> str | None:
    from pathlib import Path  # noqa: PLC0415 - an app with a URL does not pay for this import

    current = Path(start)
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
    # All processes of a project then use the same directory, from every working directory.
    return absolute_url(url, str(project.parent)) if url else None
