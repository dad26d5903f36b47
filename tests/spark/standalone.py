"""A Spark cluster of one master and two workers on this machine, a server of Spark Connect, and programs for
both.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import psutil
import pyspark
import pytest
from attrs import frozen

from dibs.spark.java import java_home
from tests.source import PROJECT

SPARK_HOME: Final = Path(pyspark.__file__).parent
#: Small heaps, as master, workers, executors and driver share a machine.
SETTINGS: Final = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.cores.max": "2",
    "spark.executor.cores": "1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
}


@frozen
class Cluster:
    """The URL of the master, and the folder for files."""

    master: str
    folder: Path

    def submit(
        self, program: str, *arguments: str, python: str, conf: Sequence[str] = (), files: Sequence[Path] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Run a program by spark-submit, with `python` on driver and executors."""
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        words = [word for setting in (*settings, *conf) for word in ("--conf", setting)]
        shipped = ["--py-files", ",".join(map(str, files))] if files else []
        return subprocess.run(
            [submit_program(), "--master", self.master, *words, *shipped, program, *arguments],
            capture_output=True,
            text=True,
            check=False,
            # A first increment on a busy machine took 240 s.
            timeout=900,
            cwd=self.folder,
            env=submit_environment(PYSPARK_PYTHON=python, PYSPARK_DRIVER_PYTHON=sys.executable),
        )


def submit_program() -> str:
    """Return the path of spark-submit in the package pyspark."""
    return str(SPARK_HOME / "bin" / "spark-submit")


def submit_environment(**more: str) -> dict[str, str]:
    """Return the environment of Spark's programs, with loopback as the address of this machine."""
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "JAVA_HOME": str(java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "PYTHONPATH": "",
        **more,
    }


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A standalone cluster with two workers of one core."""
    folder = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        master = "org.apache.spark.deploy.master.Master"
        log = stack.enter_context(running(folder, "master", spark_class(master, "--port", "0")))
        url = found(log, r"Starting Spark master at (spark://\S+)")
        for name in ("one", "two"):
            options = ("--cores", "1", "--memory", "600m", "--work-dir", str(folder / name), url)
            worker = "org.apache.spark.deploy.worker.Worker"
            log = stack.enter_context(running(folder, name, spark_class(worker, *options)))
            found(log, "Successfully registered with master")
        yield Cluster(url, folder)


@pytest.fixture(scope="session")
def connect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of Spark Connect, with two slots on this machine."""
    folder = tmp_path_factory.mktemp("connect")
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    conf = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    main = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [submit_program(), "--master", "local[2]", "--class", main, *conf, "spark-internal"]
    # The Python processes of the tasks import the application of the tests.
    environment = {"PYTHONPATH": str(PROJECT), "SPARK_DAEMON_MEMORY": "700m"}
    with running(folder, "server", command, **environment) as log:
        yield f"sc://{found(log, r'Spark Connect server started at: (127.0.0.1:[0-9]+)')}"


def spark_class(main: str, *options: str) -> list[str]:
    """Return the command of a master or a worker."""
    program = str(SPARK_HOME / "bin" / "spark-class")
    return [program, main, "--host", "127.0.0.1", "--webui-port", "0", *options]


@contextmanager
def running(folder: Path, name: str, command: Sequence[str], **environment: str) -> Iterator[Path]:
    """Run a program of Spark and yield its log; at the end, kill it and its children."""
    log = folder / f"{name}.log"
    with log.open("wb") as output:
        program = subprocess.Popen(
            command, stdout=output, stderr=output, env=submit_environment(**environment)
        )
        try:
            yield log
        finally:
            family = [*psutil.Process(program.pid).children(recursive=True), psutil.Process(program.pid)]
            for process in family:
                process.kill()
            program.wait()


def found(log: Path, pattern: str) -> str:
    """Wait until a log has a text, and return the last group of the pattern."""
    end = time.monotonic() + 120
    while (match := re.search(pattern, log.read_text())) is None:
        if time.monotonic() > end:
            raise TimeoutError(f"no {pattern!r} in {log.read_text()[-2000:]}")
        time.sleep(0.1)
    return match[match.lastindex or 0]
