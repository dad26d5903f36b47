"""Programs on a real cluster: a master and two workers, whose executors have another Python."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from dibs import Dibs
from dibs.spark.history import increments
from tests.packaging.zipped import python_without_dibs, zipped_dibs
from tests.spark import standalone
from tests.spark.source_storages import at, run_some
from tests.spark.standalone import Cluster, cluster  # noqa: F401 - a fixture
from tests.spark.warehouse_rows import KEYS, rows
from tests.storage_urls import new_url

pytestmark = pytest.mark.xdist_group("spark")

APP = """
from dibs import Dibs

app = Dibs()


@app.queue("double").handler()
def double(data: int) -> int:
    return 2 * data
"""
PROGRAM = Path(standalone.__file__).with_name("cluster_program.py")


def test_a_submitted_program_ships_dibs_and_the_application(
    cluster: Cluster,  # noqa: F811
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """--py-files brings dibs to executors that have its dependencies only."""
    (tmp_path / "cluster_app.py").write_text(APP)
    files = [zipped_dibs(tmp_path), tmp_path / "cluster_app.py"]

    ran = cluster.submit(
        str(PROGRAM),
        new_url("redis", request),
        str(tmp_path),
        python=python_without_dibs(tmp_path),
        conf=["spark.sql.session.timeZone=CET"],
        files=files,
    )

    assert 0 == ran.returncode, ran.stderr[-4000:]
    assert {
        "master": cluster.master,
        "setting": "CET",
        "rows": 40,
        "completed": 40,
        "results": [2 * number for number in range(40)],
        "followed": 40,
    } == json.loads((tmp_path / "found.json").read_text())


@pytest.mark.spark
def test_an_executor_without_dibs_says_how_to_bring_it(
    cluster: Cluster,  # noqa: F811
    tmp_path: Path,
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "from dibs.spark import run_workers, session\n"
        f"run_workers(session(), 'cluster_app:app', 1, url='file:{tmp_path}/jobs')\n"
    )

    ran = cluster.submit(str(program), python=python_without_dibs(tmp_path))

    assert ran.returncode
    assert "has no module 'dibs', which dibs needs in each task" in ran.stderr
    assert "--py-files dibs.zip" in ran.stderr


@pytest.mark.spark
def test_a_cluster_without_room_is_reported(cluster: Cluster, tmp_path: Path) -> None:  # noqa: F811
    program = tmp_path / "program.py"
    program.write_text(
        "import logging, os\n"
        "from dibs.spark import run_workers, session\n"
        "class Exit(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        print(record.getMessage(), flush=True)\n"
        "        os._exit(7)\n"
        "logging.getLogger('dibs.spark').addHandler(Exit())\n"
        "spark = session()\n"
        f"run_workers(spark, 'cluster_app:app', 1, url='file:{tmp_path}/jobs')\n"
    )

    ran = cluster.submit(str(program), python=sys.executable, conf=["spark.executor.memory=64g"])

    assert 7 == ran.returncode
    # spark-submit writes both outputs of the program to its standard output.
    assert f"{cluster.master} runs no task of this application since 20 s" in ran.stdout


@pytest.mark.spark
def test_the_history_runs_on_the_cluster_of_its_options(
    cluster: Cluster,  # noqa: F811
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    url = new_url("redis", request)

    async def work() -> None:
        async with Dibs(url) as app:
            await app.queue("double").enqueue_many(range(20))

    asyncio.run(work())
    words = [f"--conf={name}={value}" for name, value in standalone.SETTINGS.items()]
    command = [sys.executable, "-m", "dibs", "spark", "history", "--json", "--url", url]

    ran = subprocess.run(
        [*command, "--warehouse", str(tmp_path / "warehouse"), "--master", cluster.master, *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **standalone.submit_environment()},
    )

    assert 0 == ran.returncode, ran.stderr[-3000:]
    assert ["double"] == list(json.loads(ran.stdout)["since"])


@pytest.mark.spark
def test_a_submitted_history_equals_that_of_duckdb(
    cluster: Cluster,  # noqa: F811
    request: pytest.FixtureRequest,
    tmp_path: Path,
) -> None:
    """The executors have only the dibs of --py-files. Under spark-submit, the engine `auto` is Spark."""
    url, there, here = new_url("redis", request), tmp_path / "there", tmp_path / "here"
    for first in (0, 1000):
        ids = [f"id {number}" for number in range(first, first + 1000)]
        at(url, partial(run_some, queue="work", ids=ids))
    program = Path(standalone.__file__).with_name("history_program.py")
    words = ["--url", url, "--warehouse", str(there), "--json"]
    log = cluster.folder / "master.log"
    before = log.read_text().count("Registered app")

    ran = cluster.submit(
        str(program),
        *words,
        python=python_without_dibs(tmp_path),
        files=[zipped_dibs(tmp_path)],
    )
    increments.update(url, here, engine="duckdb")

    assert 0 == ran.returncode, ran.stderr[-3000:]
    assert before + 1 == log.read_text().count("Registered app")
    assert 2000 == len(rows(there, "runs", "queue", "offset"))
    for table in ("events", "runs", "metrics", "ids"):
        assert rows(there, table, *KEYS[table]) == rows(here, table, *KEYS[table])
