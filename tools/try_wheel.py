"""Installs the wheel in new environments, and uses it there as a stranger does, with no source in reach.

    python tools/try_wheel.py dist                  every environment of ENVIRONMENTS
    python tools/try_wheel.py dist web conformance  only these

Each environment has the wheel with one extra alone, so that a module which needs the packages of another
extra fails here. The base environment runs the demo and the tutorial. The programs run in a temporary folder.
"""

# ruff: noqa: INP001, T201, S603 - a script for contributors that starts what it has installed

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attrs import frozen

PROJECT: Final = Path(__file__).parent.parent
#: The page whose blocks run in the base environment, with the files that read it.
PAGE: Final = "tutorial/ten-minutes.md"
READERS: Final = ("tests/__init__.py", "tests/source.py", "tests/docs/pages.py", f"docs/{PAGE}")
RUN_PAGES: Final = """
import asyncio, contextlib, io, sys
from pathlib import Path
from tests.docs.pages import OUTPUT, Page, run_block

async def run(name):
    page = Page(name)
    page.save(Path.cwd())
    names = {"__name__": "__main__"}
    for block in page.python_blocks:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            await run_block(block.text, names)
        assert OUTPUT.findall(block.text) == out.getvalue().splitlines(), block.text
    await names["app"].close()
    page.unload()
    print(name, len(page.python_blocks), "blocks printed what the page shows")

sys.path.insert(0, "")
for name in sys.argv[1:]:
    asyncio.run(run(name))
"""
#: A module of users, with a test by each of the two plugins for pytest.
USERS_TEST: Final = """
from dibs import Dibs

app = Dibs()

@app.task
def double(number: int) -> int:
    return 2 * number

def dibs_app_fixture():
    return app

import pytest
dibs_app = pytest.fixture(dibs_app_fixture)

async def test_a_job_runs(rehearsal):
    ticket = await double.enqueue(21)
    await rehearsal.run_due()
    assert 42 == await ticket.result()
"""


@frozen
class Place:
    """An environment with the wheel, and an empty folder for its programs."""

    folder: Path

    @property
    def python(self) -> str:
        return str(self.folder / "env" / "bin" / "python")

    def run(self, *words: str, **environ: str) -> str:
        """Run a program of the environment, and return its output. Fail with the output if it fails."""
        work = self.folder / "work"
        work.mkdir(exist_ok=True)
        clean = {
            name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DIBS_"))
        }
        path = f"{self.folder / 'env' / 'bin'}{os.pathsep}{clean['PATH']}"
        done = subprocess.run(
            [str(self.folder / "env" / "bin" / words[0]), *words[1:]],
            cwd=work,
            env=clean | {"PATH": path, "NO_COLOR": "1"} | environ,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"{' '.join(words)[:200]} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done.stdout

    def import_modules(self, *names: str) -> None:
        """Import modules, and require that they come from the wheel."""
        found = self.run("python", "-c", f"import dibs, {', '.join(names)}; print(dibs.__file__)").strip()
        if not Path(found).is_relative_to(self.folder):
            raise SystemExit(f"dibs was imported from {found}, and not from the wheel")


def try_base(place: Place) -> None:
    place.import_modules("dibs.testing", "dibs.flow", "dibs.worker", "dibs.django", "dibs.cli")
    print(place.run("dibs", "--version").strip())
    (place.folder / "files").mkdir()
    for number in range(50):
        (place.folder / "files" / f"{number}.txt").write_text(str(number), "utf-8")
    place.run("dibs", "demo", "--processes", "2", str(place.folder / "files"))
    print("the demo has checked every result")
    for name in READERS:
        target = place.folder / "reader" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PROJECT / name, target)
    print(place.run("python", "-c", RUN_PAGES, PAGE, PYTHONPATH=str(place.folder / "reader")).strip())
    print(place.run("python", "plain.py").strip())


def try_conformance(place: Place) -> None:
    place.import_modules("dibs_conformance", "dibs_conformance.plugin")
    print(place.run("dibs", "certify", "memory:", "--budget", "10").strip().splitlines()[-1])


def try_pytest(place: Place) -> None:
    """Run the kit as tests, and a test of users with the fixture `rehearsal`."""
    kit = place.run("pytest", "-q", "--dibs-storage", "memory:", "--dibs-level", "L0", "--dibs-budget", "10")
    (place.folder / "work" / "test_users.py").write_text(USERS_TEST, "utf-8")
    users = place.run("pytest", "-q", "-o", "asyncio_mode=auto", "test_users.py")
    print(kit.strip().splitlines()[-1], "|", users.strip().splitlines()[-1])


def try_web(place: Place) -> None:
    place.import_modules("dibs.web")
    place.run("python", "-c", "from dibs.web import dibs_web; dibs_web('memory:')")


def importing(*names: str) -> Callable[[Place], None]:
    return lambda place: place.import_modules(*names)


#: Name -> (extra, further packages, the use of the environment).
ENVIRONMENTS: Final[dict[str, tuple[str, tuple[str, ...], Callable[[Place], None]]]] = {
    "base": ("", (), try_base),
    "conformance": ("conformance", (), try_conformance),
    "pytest": ("conformance", ("pytest", "pytest-asyncio"), try_pytest),
    "metrics": ("metrics", (), importing("dibs.telemetry.metrics")),
    "otel": ("otel", (), importing("dibs.telemetry.tracing")),
    "uvloop": ("uvloop", (), importing("uvloop")),
    "web": ("web", (), try_web),
    "mcp": ("mcp", (), importing("dibs.cli.mcp.server")),
    "crypto": ("crypto", (), importing("dibs.client.options.protected_serdes")),
    "history": ("history", (), importing("dibs.spark.history.duckdb_engine.engine")),
    "history-s3": ("history-s3", (), importing("dibs.spark.history.duckdb_engine.engine", "s3fs")),
    "spark": ("spark", (), importing("dibs.spark", "dibs.spark.source", "pyspark_dibs")),
}


def main(dist: Path, names: list[str]) -> None:
    (wheel,) = dist.resolve().glob("*.whl")
    for name in names or ENVIRONMENTS:
        extra, packages, use = ENVIRONMENTS[name]
        with tempfile.TemporaryDirectory(prefix=f"dibs-{name}-") as folder:
            place = Place(Path(folder).resolve())
            venv.create(place.folder / "env", with_pip=True)
            what = f"{wheel}[{extra}]" if extra else str(wheel)
            place.run(
                "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what, *packages
            )
            print(f"--- {name}")
            use(place)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
