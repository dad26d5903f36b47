"""A Spark cluster of one master and workers on this machine, and programs submitted to it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

import pyspark

from dibs.spark.java import java_home

SPARK_HOME: Final = Path(pyspark.__file__).parent


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
        **more,
    }
