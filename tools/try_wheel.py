"""Installs the wheel in new environments, and uses it there as a stranger does, with no source in reach.

    python tools/try_wheel.py dist                  every environment of ENVIRONMENTS
    python tools/try_wheel.py dist web conformance  only these

Each environment has the wheel with one extra alone, so that a module which needs the packages of another
extra fails here. tools/wheel_uses.py has the programs, which run in a temporary folder.
"""

# ruff: noqa: INP001, T201 - a script for contributors

from __future__ import annotations

import sys
import tempfile
import venv
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
    "history-s3": ("history-s3", (), uses.try_history_s3),
    "delta": ("delta", (), uses.try_delta),
    "iceberg": ("iceberg", ("sqlalchemy",), uses.try_iceberg),
    "spark": ("spark", (), uses.try_spark),
}


def try_environment(wheel: Path, name: str) -> None:
    extra, packages, use = ENVIRONMENTS[name]
    with tempfile.TemporaryDirectory(prefix=f"dibs-{name}-") as folder:
        place = uses.Place(Path(folder).resolve())
        venv.create(place.folder / "env", with_pip=True)
        what = f"{wheel}[{extra}]" if extra else str(wheel)
        print(f"--- {name}", flush=True)
        place.run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", what, *packages)
        use(place)


def main(dist: Path, names: list[str]) -> int:
    """Try the environments, also those after a failure. Return 1 if one failed, else 0."""
    (wheel,) = dist.resolve().glob("*.whl")
    failed = []
    for name in names or ENVIRONMENTS:
        try:
            try_environment(wheel, name)
        except (SystemExit, OSError) as error:
            print(error, flush=True)
            failed.append(name)
    print("failed:" if failed else "all environments work", *failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
