"""Installs the wheel in new environments, and uses it there as a stranger does, with no source in reach.

    python tools/try_wheel.py dist                  every environment of ENVIRONMENTS
    python tools/try_wheel.py dist web conformance  only these
    python tools/try_wheel.py --collect DIR dist    only collect the wheels of all environments in a folder
    python tools/try_wheel.py --wheels DIR dist     install from this folder in place of a package index

Each environment has the wheel with one extra alone, so that a module which needs the packages of another
extra fails here. tools/wheel_uses.py has the programs, which run in a temporary folder.

The folder has 93 wheels with 694 MB, 457 of them of PySpark, which pip builds from its source. Without it,
each environment downloads its packages. The versions in the folder fit all extras together; the environment
`base` installs from the index in any case, as a stranger does first.
"""

# ruff: noqa: INP001, T201, S603 - a script for contributors that starts pip

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import wheel_uses as uses  # type: ignore[import-not-found]  # beside this script

#: Name -> (extra, further packages, the use of the environment).
ENVIRONMENTS: Final[dict[str, tuple[str, tuple[str, ...], uses.Use]]] = {
    "base": ("", (), uses.try_base),
    "conformance": ("conformance", (), uses.try_conformance),
    "pytest": ("conformance", ("pytest", "pytest-asyncio"), uses.try_pytest),
    "metrics": ("metrics", (), uses.try_metrics),
    "otel": ("otel", (), uses.try_otel),
    "uvloop": ("uvloop", (), uses.try_uvloop),
    "web": ("web", (), uses.try_web),
    "mcp": ("mcp", (), uses.try_mcp),
    "crypto": ("crypto", (), uses.try_crypto),
    "history": ("history", (), uses.try_history),
    "spark": ("spark", (), uses.try_spark),
}


def pip(*words: str) -> None:
    """Run the pip of this script, which also installs in environments without a pip of their own."""
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *words], check=True)


def with_extras(wheel: Path, extras: Iterable[str]) -> str:
    names = ",".join(sorted(filter(None, extras)))
    return f"{wheel}[{names}]" if names else str(wheel)


def collect(wheel: Path, folder: Path) -> None:
    """Download, or build, the wheels of all packages of all environments into a folder."""
    rows = ENVIRONMENTS.values()
    packages = sorted({name for _, added, _ in rows for name in added})
    target = with_extras(wheel, {extra for extra, _, _ in rows})
    pip("wheel", "--quiet", "--wheel-dir", str(folder), target, *packages)
    found = [path.stat().st_size for path in folder.glob("*.whl")]
    print(f"{len(found)} wheels, {sum(found) / 1e6:,.0f} MB", flush=True)


def try_environment(wheel: Path, name: str, wheels: Path | None) -> None:
    extra, packages, use = ENVIRONMENTS[name]
    with tempfile.TemporaryDirectory(prefix=f"dibs-{name}-") as folder:
        place = uses.Place(Path(folder).resolve())
        venv.create(place.folder / "env", with_pip=False)
        # The programs compile the modules that they import, a small part of all.
        source = ("--no-index", "--find-links", str(wheels), "--no-compile") if wheels and extra else ()
        into = ("--python", str(place.python), "install", "--quiet", *source)
        started = time.monotonic()
        pip(*into, with_extras(wheel, [extra]), *packages)
        print(f"installed in {time.monotonic() - started:.0f} s", flush=True)
        use(place)


def main(wheel: Path, names: list[str], wheels: Path | None) -> int:
    """Try the environments, also those after a failure. Return 1 if one failed, else 0."""
    failed = []
    for number, name in enumerate(names, 1):
        started = time.monotonic()
        print(f"--- {name} ({number} of {len(names)})", flush=True)
        try:
            try_environment(wheel, name, wheels)
        except (SystemExit, OSError, subprocess.CalledProcessError) as error:
            print(error, flush=True)
            failed.append(name)
        print(
            f"{'failed' if name in failed else 'passed'} after {time.monotonic() - started:.0f} s", flush=True
        )
    print("failed:" if failed else "all environments work", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dist", type=Path, help="the folder with the wheel")
    parser.add_argument("names", nargs="*", metavar="name", help="an environment")
    parser.add_argument(
        "--collect", type=Path, metavar="DIR", help="collect all wheels here, and try nothing"
    )
    parser.add_argument("--wheels", type=Path, metavar="DIR", help="install the extras from this folder")
    options = parser.parse_args()
    if unknown := set(options.names) - ENVIRONMENTS.keys():
        parser.error(f"unknown environment {', '.join(unknown)}; choose from {', '.join(ENVIRONMENTS)}")
    (found,) = options.dist.resolve().glob("*.whl")
    if options.collect:
        collect(found, options.collect)
    else:
        sys.exit(main(found, options.names or [*ENVIRONMENTS], options.wheels))
