"""The import of an application by its name, in a worker process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dibs.errors import ConfigurationError
from dibs.worker.processes.app_import import import_app, is_importing_app


def write_module(folder: Path, patch: pytest.MonkeyPatch, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(text)
    patch.syspath_prepend(folder)
    patch.delitem(sys.modules, name, raising=False)


def test_a_missing_module_is_reported_with_what_to_check() -> None:
    with pytest.raises(ConfigurationError) as error:
        import_app("no_such_app:app")

    assert (
        "cannot import no_such_app: No module named 'no_such_app'; check the name, and that sys.path has its "
        "directory"
    ) == str(error.value)


def test_an_error_in_the_module_is_reported_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_module(tmp_path, monkeypatch, "app_that_divides", "\n1 / 0\n")
    with pytest.raises(ConfigurationError) as error:
        import_app("app_that_divides:app")

    place = tmp_path / "app_that_divides.py"
    assert f"cannot import app_that_divides: ZeroDivisionError: division by zero ({place}:2)" == str(
        error.value
    )


def test_a_module_is_told_that_it_is_imported_as_an_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from dibs import Dibs\n"
        "from dibs.worker.processes.app_import import is_importing_app\n"
        "app, inside = Dibs('memory:'), is_importing_app()\n"
    )
    write_module(tmp_path, monkeypatch, "app_that_asks", text)
    app = import_app("app_that_asks:app")

    assert app is sys.modules["app_that_asks"].app
    assert (True, False) == (sys.modules["app_that_asks"].inside, is_importing_app())
