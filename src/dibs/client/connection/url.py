"""Where the jobs live: the URL that counts, and the form of it that may be shown."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dibs.errors import ConfigurationError, NoStorage

if TYPE_CHECKING:
    from pathlib import Path

URL_VARIABLE = "DIBS_URL"


def resolve_url(url: str | None) -> str:
    """Return the URL given, else $DIBS_URL, else url in the nearest pyproject. Raises NoStorage."""
    found = url or os.environ.get(URL_VARIABLE) or _from_project()
    if not found:
        raise NoStorage
    return found


def _from_project() -> str | None:
    # Only who has no URL pays for paths and for reading TOML.
    from pathlib import Path  # noqa: PLC0415

    here = Path.cwd()
    for folder in (here, *here.parents):
        project = folder / "pyproject.toml"
        if project.is_file():
            return _url_in(project)
    return None


def _url_in(project: Path) -> str | None:
    import tomllib  # noqa: PLC0415 - as above

    try:
        tool = tomllib.loads(project.read_text("utf-8")).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{project} cannot be read: {error}") from error
    url = tool.get("dibs", {}).get("url")
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(f"{project}: url under [tool.dibs] must be text")
    return _beside(project, url) if url else None


def _beside(project: Path, url: str) -> str:
    """Return a relative file: URL as one from the project's folder: one place, whoever starts where."""
    scheme, _, path = url.partition(":")
    if scheme != "file" or path.startswith("/"):
        return url
    return f"file:{project.parent}/{path.removeprefix('./')}"


def redact_url(url: str) -> str:
    """Return a URL without user, password, query and fragment."""
    bare = url.partition("#")[0].partition("?")[0]
    scheme, slashes, rest = bare.partition("://")
    if not slashes:
        return bare if ":" in bare else "..."
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"
