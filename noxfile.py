"""The sessions of contributors. `nox` runs the tests that are not long, and `nox -l` lists all sessions.

`nox -t ci` runs what the CI runs. `browser` is skipped where no Chromium is installed.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import nox
from packaging.requirements import Requirement

nox.needs_version = ">=2026.10"
nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

TYPED = (
    "src",
    "conformance",
    "tests",
    "benchmarks",
    "examples/dibs-sqlite/src",
    "examples/dibs-lmdb/src",
    "tools",
    "noxfile.py",
)
STORAGES = ("memory", "file", "redis", "postgres", "sqlite", "lmdb")
#: Sources of Redis and Postgres: the wheels of pip, the packages of the system, or Valkey instead of Redis.
SERVER_SOURCES = ("wheel", "system", "valkey")
#: Versions of CPython that the CI tests. The classifiers in pyproject.toml name them.
TESTED_PYTHONS = ("3.11", "3.12", "3.13")
#: Versions on which no test has run yet; 3.14t has no global interpreter lock.
NEXT_PYTHONS = ("3.14", "3.14t")

#: Schemas of check-jsonschema, and the files that follow them.
GITHUB_SCHEMAS = {
    "github-workflows": ".github/workflows/*.yml",
    "github-issue-forms": ".github/ISSUE_TEMPLATE/[!c]*.yml",
    "github-issue-config": ".github/ISSUE_TEMPLATE/config.yml",
    "dependabot": ".github/dependabot.yml",
}

# In CI a failed test runs again, as in the CI of CPython. Thousands of tests talk to real servers and kill
# real processes on a shared machine: a test that fails once is named in the summary, but does not fail the
# run.
RERUNS = ("--reruns", "2", "--reruns-delay", "2", "-raR") if os.environ.get("CI") else ()

#: Three processes, also on two cores, because tests wait for about a third of their time.
#: The tests of one xdist group, such as those on Spark, run in the same process.
TEST_PROCESSES = ("-n", "3", "--dist", "loadgroup")

PROJECT = nox.project.load_toml("pyproject.toml")
EXTRAS = PROJECT["project"]["optional-dependencies"]
#: The extras of users, without those of contributors.
USER_EXTRAS = ",".join(sorted(EXTRAS.keys() - {"bench", "dev", "docs", "test"}))

#: The long tests, as the expression of markers that plain pytest has turned round.
LONG = PROJECT["tool"]["pytest"]["ini_options"]["addopts"][-1].replace("not long", "long", 1)
#: Session -> the folders of tests/ whose long tests it runs. tests_rest runs those of all other folders.
LONG_FOLDERS = {
    "spark": ("spark",),
    "frameworks": ("frameworks", "web"),
    "kit": ("kit", "examples", "mutation", "simulation", "soak"),
}


def expand(extra: str) -> Iterator[Requirement]:
    """Yield the requirements of an extra, with those of the extras of dibs that it names."""
    for need in map(Requirement, EXTRAS[extra]):
        if need.name == "dibs":
            for named in need.extras:
                yield from expand(named)
        elif need.marker is None or need.marker.evaluate():
            yield need


def has_environment(extra: str) -> bool:
    """Return whether the environment of nox has this source of dibs with all packages of an extra."""
    try:
        origin = distribution("dibs").read_text("direct_url.json") or ""
        return f'"{Path(__file__).parent.as_uri()}"' in origin and all(
            need.specifier.contains(distribution(need.name).version, prereleases=True)
            for need in expand(extra)
        )
    except PackageNotFoundError:
        return False


#: An environment with all packages takes minutes and two gigabytes. So the sessions run in the environment
#: of nox if that has them, as after `pip install -e '.[dev]'`, and otherwise in environments of their own.
#: The session `tests` needs the extra `test` only.
HAS_TEST_ENVIRONMENT = has_environment("test")
HAS_DEV_ENVIRONMENT = HAS_TEST_ENVIRONMENT and has_environment("dev")
nox.options.default_venv_backend = "none" if HAS_DEV_ENVIRONMENT else "venv"
if HAS_TEST_ENVIRONMENT:
    # `.venv/bin/nox` also runs in a shell that has not activated the environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def install(session: nox.Session, extra: str = "dev") -> None:
    """Install the project with all tools of contributors or an extra, unless the session runs where they are.

    With all tools, a test whose package is missing fails.
    """
    if session.venv_backend != "none":
        session.install("-e", f".[{extra}]")
    if extra == "dev":
        session.env["DIBS_TEST_PACKAGES"] = "required"


def install_tools(session: nox.Session, *names: str) -> None:
    """Install some tools without the project, in the versions that the project requires."""
    if session.venv_backend != "none":
        session.install(*(need for need in EXTRAS["dev"] if need.partition(">")[0] in names))


def has_python(path: str) -> bool:
    found = Path(path)
    return found.is_file() or any(found.rglob("*.py"))


def run_marked(session: nox.Session, marker: str, *options: str) -> None:
    """Run the tests with a marker, which plain pytest skips. Skip the session if there are none."""
    if not any(f"mark.{marker}" in file.read_text("utf-8") for file in Path("tests").rglob("*.py")):
        session.skip(f"no test has the marker {marker}")
    session.run("pytest", "-m", marker, *options)


@nox.session(tags=["ci"], venv_backend="none" if HAS_TEST_ENVIRONMENT else "venv")
def tests(session: nox.Session) -> None:
    """Run the tests that are not long; arguments after `--` go to pytest."""
    install(session, "test")
    session.run("pytest", *TEST_PROCESSES, *RERUNS, *session.posargs)


def run_long(session: nox.Session, *words: str) -> None:
    install(session)
    session.run("pytest", *TEST_PROCESSES, *RERUNS, "-m", LONG, *words, *session.posargs)


@nox.session(tags=["ci"])
def tests_kit(session: nox.Session) -> None:
    """Run the long tests of the conformance kit: certificates, planted bugs, examples, short soaks."""
    run_long(session, *(f"tests/{folder}" for folder in LONG_FOLDERS["kit"]))


@nox.session(tags=["ci"])
def tests_spark(session: nox.Session) -> None:
    """Run the tests that start Spark, and the long ones of the history."""
    run_long(session, *(f"tests/{folder}" for folder in LONG_FOLDERS["spark"]))


@nox.session(tags=["ci"])
def tests_frameworks(session: nox.Session) -> None:
    """Run the tests under the servers of web frameworks, and the long ones of the dashboard."""
    run_long(session, *(f"tests/{folder}" for folder in LONG_FOLDERS["frameworks"]))


@nox.session(tags=["ci"])
def tests_rest(session: nox.Session) -> None:
    """Run all other long tests: scenarios, programs of the docs, benchmarks, features of earlier systems."""
    others = (f"--ignore=tests/{folder}" for folders in LONG_FOLDERS.values() for folder in folders)
    run_long(session, "tests", *others)


def find_python(version: str) -> str:
    """Return the path of an interpreter of pyenv or on PATH, or the version, which nox reports as missing."""
    root = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()
    # The shims of pyenv on PATH fail for a version that `pyenv local` has not chosen.
    found = sorted(map(str, root.glob(f"versions/{version.removesuffix('t')}*/bin/python{version}")))
    return next(iter(found), shutil.which(f"python{version}") or version)


def tests_on(session: nox.Session) -> None:
    """Run all tests but the nightly ones on one version of Python, which must be installed."""
    install(session)
    session.run("python", "-VV")
    session.run("pytest", *TEST_PROCESSES, *RERUNS, *(session.posargs or ["tests"]))


for version in (*TESTED_PYTHONS, *NEXT_PYTHONS):
    nox.session(name=f"tests-{version}", python=find_python(version), tags=["pythons"], venv_backend="venv")(
        tests_on
    )


@nox.session
def tests_servers(session: nox.Session) -> None:
    """Run the tests with servers of pip, of the system, Valkey, or all: `nox -s tests_servers -- wheel`."""
    sources = [word for word in session.posargs if word in SERVER_SOURCES] or SERVER_SOURCES
    install(session)
    for source in sources:
        # As in .ci/run: without its server a test fails; it is not skipped.
        postgres = "" if source == "valkey" else source
        env = {"DIBS_REDIS_SERVER": source, "DIBS_POSTGRES_BIN": postgres, "DIBS_TEST_SERVERS": "required"}
        rest = [word for word in session.posargs if word not in SERVER_SOURCES]
        session.run("pytest", *TEST_PROCESSES, *RERUNS, *(rest or ["tests"]), env=env)


@nox.session(tags=["ci"])
def types(session: nox.Session) -> None:
    """Check all types with mypy, and the public API with pyright."""
    install(session)
    session.run("mypy", *filter(has_python, TYPED))
    session.run("pyright")
    session.run("python", "tools/verify_types.py")


@nox.session(tags=["ci"])
def lint(session: nox.Session) -> None:
    """Check the format, the lint rules and .github; `ruff format && ruff check --fix` repairs most errors."""
    install_tools(session, "ruff", "check-jsonschema", "zizmor")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    # The schemas come with the package, and --offline leaves out the questions to GitHub.
    for schema, files in GITHUB_SCHEMAS.items():
        session.run(
            "check-jsonschema", "--builtin-schema", f"vendor.{schema}", *map(str, sorted(Path().glob(files)))
        )
    session.run("zizmor", "--offline", "--quiet", ".github")


@nox.session
def layers(session: nox.Session) -> None:
    """Check which package imports which, and the other rules of the source."""
    # These tests only read source. Without Spark and the servers, the installation takes a fifth of the time.
    install_tools(session, "pytest", "pytest-asyncio")
    if session.venv_backend != "none":
        session.install("-e", ".[conformance]")
    session.run(
        "pytest",
        "tests/test_layers.py",
        "tests/test_floors.py",
        "tests/test_house.py",
        "tests/test_references.py",
    )


@nox.session(tags=["ci"])
def docs(session: nox.Session) -> None:
    """Build the site with the reference from the docstrings; a broken link or name is an error."""
    if session.venv_backend != "none":
        session.install(*EXTRAS["docs"])
    session.run("zensical", "build", "--strict", "--clean", *session.posargs)


@nox.session(venv_backend="venv")
def release(session: nox.Session) -> None:
    """Build the sdist and the wheel in dist/, check them, and use the wheel in new environments.

    Two builds must give the same bytes. `-- --final` refuses what must not be uploaded.
    """
    session.log("1 of 6: the tools")
    session.install(
        "attrs", "build>=1.3", "check-wheel-contents>=0.6", "cyclonedx-bom>=7.2", "pip>=25", "twine>=6.2"
    )
    dist = Path("dist")
    shutil.rmtree(dist, ignore_errors=True)
    session.log("2 of 6: two builds")
    session.run("python", "tools/build_release.py", str(dist))
    artifacts = [str(path) for path in sorted(dist.iterdir())]
    session.log("3 of 6: contents and metadata")
    session.run("twine", "check", "--strict", *artifacts)
    session.run(
        "check-wheel-contents",
        "--ignore",
        "W002,W009",
        *(path for path in artifacts if path.endswith(".whl")),
    )
    session.run("python", "tools/check_artifacts.py", *session.posargs, *artifacts)
    session.log("4 of 6: the packages of all extras, once for all environments")
    wheels = Path(session.create_tmp()) / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    session.run("python", "tools/try_wheel.py", "--collect", str(wheels), str(dist))
    session.log("5 of 6: the wheel in new environments")
    session.run("python", "tools/try_wheel.py", "--wheels", str(wheels), str(dist))
    session.log("6 of 6: the list of all packages of all extras")
    # A new environment without pip, which is not among the packages.
    place = Path(session.create_tmp()) / "sbom"
    session.run("python", "-m", "venv", "--clear", "--without-pip", str(place))
    wheel = next(path for path in artifacts if path.endswith(".whl"))
    pip = ("python", "-m", "pip", "--python", str(place), "install", "--quiet", "--no-compile")
    session.run(*pip, "--no-index", "--find-links", str(wheels), f"{wheel}[{USER_EXTRAS}]")
    words = ("--output-reproducible", "--pyproject", "pyproject.toml", "--output-file", "dist/dibs.cdx.json")
    session.run("cyclonedx-py", "environment", *words, str(place))
    # Both folders together have two gigabytes.
    shutil.rmtree(wheels)
    shutil.rmtree(place)


@nox.session
def changelog(session: nox.Session) -> None:
    """Move the fragments to CHANGELOG.md: `nox -s changelog -- 0.2.0`. Without a version, print them."""
    install_tools(session, "towncrier")
    what = ("--version", session.posargs[0], "--yes") if session.posargs else ("--version", "next", "--draft")
    session.run("towncrier", "build", "--name", "dibs", *what)


@nox.session(venv_backend="venv")
def audit(session: nox.Session) -> None:
    """Ask the database of known vulnerabilities about each required package. Needs the internet.

    A package that the database does not know fails the session: without `--strict`, pip-audit only names it.
    """
    session.install("-e", f".[{USER_EXTRAS}]", "pip-audit>=2.9")
    listed = session.run("python", "-m", "pip", "freeze", "--exclude-editable", silent=True)
    required = Path(session.create_tmp()) / "required.txt"
    required.write_text(str(listed), "utf-8")
    options = ("--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off")
    session.run("pip-audit", *options, "--requirement", str(required), *session.posargs)


@nox.session
def certify(session: nox.Session) -> None:
    """Run the long form of the conformance kit: `nox -s certify -- memory`, or all built-in storages.

    DIBS_CERTIFY_BUDGET is the number of seconds for the levels above L0 of each storage; L0 runs a fixed
    number of histories. Each report is printed with the seed that repeats it.
    """
    install(session)
    unknown = set(session.posargs) - set(STORAGES)
    if unknown:
        session.error(f"unknown storage {', '.join(sorted(unknown))}; choose from {', '.join(STORAGES)}")
    run_marked(session, "certify", "-rP", "-k", " or ".join(session.posargs or STORAGES))


@nox.session
def mutants(session: nox.Session) -> None:
    """Draw random mutants and try to kill them: `nox -s mutants -- --seed 7 --count 40 --storage redis`.

    The areas are the storages (all by default), worker and client. Each mutant of a storage is certified up
    to L2 for --budget seconds (60); those of worker and client run the tests of their folder. The session
    fails if a mutant survives that tests/mutation/equivalents.toml does not list.
    """
    install(session)
    session.run("python", "-m", "tests.mutation", *session.posargs)


@nox.session(venv_backend="venv", python=find_python("3.12"))
def django(session: nox.Session) -> None:
    """Run Django's own tests of task backends on the backend of dibs. Needs Python 3.12 and the internet."""
    folder = Path(session.create_tmp())
    shutil.rmtree(folder / "source", ignore_errors=True)
    # The tests are in the source distribution only, and must be those of the installed Django.
    session.run(
        "python", "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "django",
        "--dest", str(folder / "source"), *(session.posargs or ["django>=6.0"]),
    )  # fmt: skip
    (archive,) = (folder / "source").glob("*.tar.gz")
    shutil.unpack_archive(archive, folder / "source", filter="data")
    session.install("-e", ".", str(archive))
    source = next(path for path in (folder / "source").iterdir() if path.is_dir())
    session.run("python", "tests/frameworks/apps/run_django_suite.py", str(source))


@nox.session
def chaos(session: nox.Session) -> None:
    """Run the long tests with killed processes and lost replies."""
    install(session)
    run_marked(session, "chaos", *session.posargs)


@nox.session
def soak(session: nox.Session) -> None:
    """Cause faults for DIBS_SOAK_MINUTES (10) on each storage at the same time, and print the table.

    Producers, workers, servers and the network are killed; the accounts must have no violation.
    """
    install(session)
    reports = Path(session.create_tmp()) / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    session.env["DIBS_SOAK_REPORTS"] = str(reports)
    run_marked(session, "soak", "-n", "3", *session.posargs)
    session.run("python", "-m", "tests.soak.table", str(reports))


@nox.session
def simulate(session: nox.Session) -> None:
    """Simulate the whole system under faults for ten minutes: `nox -s simulate -- --seeds 0 --minutes 60`.

    Arguments after `--` go to the command. A broken promise is made small, and printed with what repeats it.
    """
    install(session)
    words = session.posargs or ("--seeds", "0", "--minutes", "10", "--jobs", str(os.cpu_count() or 1))
    session.run("python", "-m", "dibs_conformance.simulate", *words)


@nox.session
def spark(session: nox.Session) -> None:
    """Run the long form of the tests on Spark: twenty kills for each sink, storage and warehouse."""
    install(session)
    run_marked(session, "spark", *session.posargs)


@nox.session(tags=["ci"])
def browser(session: nox.Session) -> None:
    """Test the dashboard in Chromium of the system: `apt-get install chromium`, or set DIBS_CHROMIUM."""
    programs = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    if not os.environ.get("DIBS_CHROMIUM") and not any(map(shutil.which, programs)):
        session.skip("no Chromium is installed: apt-get install chromium, or set DIBS_CHROMIUM to its path")
    install(session)
    # The session has found a browser, so a test that cannot start it fails.
    session.env["DIBS_TEST_BROWSER"] = "required"
    run_marked(session, "browser", *RERUNS, *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure dibs and its baselines in a few minutes; arguments after `--` go to the benchmarks."""
    install(session)
    session.run("python", "-m", "benchmarks", *(session.posargs or ("--servers", "--quick", "--rounds", "2")))


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Compare dibs with other job queues; each is installed in a separate environment."""
    install(session)
    session.run("python", "-m", "benchmarks.peers", *session.posargs)


@nox.session
def bench_flows(session: nox.Session) -> None:
    """Compare the flows of dibs with those of Celery, BullMQ and pg-boss."""
    install(session)
    session.run("python", "-m", "benchmarks.flows", *session.posargs)
