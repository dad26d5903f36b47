"""Which tests `pytest` leaves out unless a path is given, and the packages that some test files need.

Plain `pytest` takes a few minutes on two cores in an environment of the extra `test`. The tests with the
marker `long` run where a path names them (`pytest tests/spark`), and in the sessions tests_* of noxfile.py.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Final

import pytest

#: Folders, files and tests that are long. Other long tests have the marker in their file.
LONG: Final = (
    "benchmarks",
    "examples",
    "frameworks",
    "lineage",
    "soak",
    "spark",
    # Tests that cross modules: killed processes, failovers, full disks.
    "cli/scenarios",
    "client/scenarios",
    "storage/file/scenarios",
    "storage/postgres/scenarios",
    "storage/redis/scenarios",
    "worker/scenarios",
    # Many tests of about a second, each of which starts processes.
    "cli/test_worker.py",
    "cli/test_worker_logging.py",
    "docs/test_shell_blocks.py",
    "flow/test_batch_crashes.py",
    "kit/crashes",
    "kit/history/test_free_run.py",
    "worker/processes/test_fork_server.py",
    "web/test_command.py",
    "worker/processes/test_isolated_executor.py",
    # Those of the kit and of the server storages.
    "kit/concurrent/test_levels.py::test_file_without_its_lock_is_caught",
    "kit/sequential/test_bad_calls.py::test_a_storage_with_wrong_checks_is_not_certified",
    "kit/sequential/test_chance.py",
    "kit/sequential/test_clock_steps.py::test_a_client_clock_is_a_false_claim",
    "kit/sequential/test_jumped_clock.py::test_a_storage_without_a_shared_time_is_spared",
    "kit/sequential/test_many_queues.py::test_a_bug_of_blocking_claims_of_many_queues_is_found",
    "kit/sequential/test_probes.py::test_an_untested_claim_keeps_the_level_from_being_reached",
    "kit/sequential/test_restarts.py",
    "kit/sequential/test_single_calls.py::test_a_bug_of_a_direct_call_on_redis_is_found",
    "kit/sequential/test_single_calls.py::test_a_bug_of_a_script_is_found",
    "kit/sequential/test_unimplemented.py",
    "kit/sequential/test_waits.py",
    "kit/test_certify.py",
    "kit/test_certify_levels.py",
    "kit/test_locations.py::test_a_redis_is_left_as_it_was",
    "kit/test_mutants.py::test_a_bug_in_file_is_found",
    "kit/test_mutants.py::test_a_bug_in_memory_is_found",
    "kit/test_mutants.py::test_a_checkpoint_after_every_commit_is_no_bug",
    "kit/test_mutants.py::test_a_path_that_is_always_taken_is_no_bug",
    "kit/test_raising_storages.py::test_l0_reports_a_verb_with_its_history",
    "kit/test_raising_storages.py::test_l1_reports_a_verb_with_its_history",
    "kit/test_raising_storages.py::test_l3_reports_a_child_process",
    "kit/test_report.py::test_levels_above_a_broken_one_do_not_run",
    "kit/test_report.py::test_the_command_writes_each_form_by_its_ending",
    "kit/test_report.py::test_the_command_writes_page_and_badge",
    "kit/test_report.py::test_the_levels_share_the_rest_of_the_budget",
    "kit/test_storage_items.py::test_a_false_claim_fails_its_test",
    "kit/test_storage_items.py::test_each_capability_and_level_is_a_test",
    "storage/postgres/migrations/test_in_line.py::test_large_payloads_come_in_several_rows",
    "storage/postgres/migrations/test_plan.py::test_a_page_reads_only_its_own_rows",
    "storage/postgres/migrations/test_serve.py::test_large_payloads_come_in_several_rows",
    "storage/postgres/migrations/test_statistics.py",
    "storage/postgres/network/test_cancelled.py::test_a_caller_that_outlives_the_storage_is_silent",
    "storage/postgres/network/test_thread_connections.py::test_a_server_that_does_not_answer_a_thread_is_an_unknown_outcome",
    "storage/redis/network/test_client_settings.py::test_a_client_of_a_cluster_gives_seeds_and_address_map",
    "storage/redis/network/test_cluster.py::test_a_replica_takes_over_for_calls_blocking_claims_and_wake_ups",
    "storage/redis/network/test_cluster.py::test_calls_and_wake_ups_go_on_after_the_only_seed_left_the_cluster",
    # Thousands of requests, and a wait for a server that is not there.
    "web/test_hidden_values.py::test_no_form_is_an_error_of_the_server",
    "web/test_safety.py::test_no_page_shows_the_password_of_the_url",
)
#: Tests of the history and its page, which run without Spark, so they are not long.
WITHOUT_SPARK: Final = (
    "spark/test_history_findings.py",
    "spark/test_history_planted.py",
    "spark/test_report_page.py",
)
#: Folder or file -> a package that its tests need and that the extra `test` does not install. Without the
#: package they are not collected, except with DIBS_TEST_PACKAGES=required, which the sessions of nox set.
NEEDS: Final = {
    "benchmarks": "matplotlib",
    "client/test_typing.py": "mypy",
    "deploy/test_compose.py": "check_jsonschema",
    "deploy/test_kubernetes.py": "kubernetes_validate",
    "deploy/test_monitoring.py": "promql_parser",
    "docs/test_howto.py": "django",
    "docs/test_site.py": "markdown",
    "docs/test_started_programs.py": "fastapi",
    "examples/test_lmdb.py": "lmdb",
    "frameworks": "django",
    "packaging/test_artifacts.py": "hatchling",
    "packaging/test_changelog.py": "towncrier",
    "spark": "pyspark",
    "web/browser": "playwright",
    "web/test_mounting.py": "fastapi",
}


def names(path: str, test: str = "") -> list[str]:
    """Return the names by which a table may list a test: those of its folders, its file and itself."""
    parts = path.split("/")
    found = ["/".join(parts[: end + 1]) for end in range(len(parts))]
    return [*found, f"{path}::{test}"] if test else found


def is_long(path: str, test: str = "") -> bool:
    """Return whether the tables list a test, or a whole file. `path` begins below tests/."""
    return path not in WITHOUT_SPARK and any(name in LONG for name in names(path, test))


def needed(path: str) -> str:
    """Return the package that a folder or file needs; "" if the extra `test` is enough."""
    if path in WITHOUT_SPARK:
        return ""
    return next((NEEDS[name] for name in names(path) if name in NEEDS), "")


def is_missing(package: str) -> bool:
    """Return whether a package is not installed and may be missing; in the CI it may not."""
    return os.environ.get("DIBS_TEST_PACKAGES") != "required" and find_spec(package) is None


def require(package: str) -> None:
    """Skip the test if a package is missing that the extra `test` does not install."""
    if is_missing(package):
        pytest.skip(f"{package} is not installed")
