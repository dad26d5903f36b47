"""dibs runs from a ZIP file, as `spark-submit --py-files` ships it: no module opens its files by path."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.packaging.zipped import python_without_dibs, zipped_dibs

PROGRAM = """
import dibs

assert ".zip" in dibs.__file__, dibs.__file__

from dibs.spark.report.page import render
from dibs.spark.history.queries import definition
from dibs.storage.postgres import queries
from dibs.storage.redis.network import scripts

for verb in scripts.verb_names():
    scripts.script(verb)
assert scripts.library_name() in scripts.library_text()
assert queries.migrations() and queries.function_files() and queries.read_queries()
assert definition("ids")
assert render._read_asset("report.css")
"""


def test_all_files_that_a_cluster_needs_are_read_from_a_zip(tmp_path: Path) -> None:
    archive = zipped_dibs(tmp_path)
    ran = subprocess.run(
        [python_without_dibs(tmp_path), "-c", PROGRAM],
        env={"PYTHONPATH": str(archive)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert not ran.returncode, ran.stderr
