"""The backend of Django's task API, under Django's test runner and with a worker process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dibs import JobFailed
from dibs.django_tasks.results import StoredTaskError
from dibs_conformance.servers import PostgresServer
from tests.frameworks.django_project import Site, new_site

BACKEND = "dibs.django_tasks.backend.DibsBackend"


def tasks(**options: Any) -> str:
    return json.dumps({"default": {"BACKEND": BACKEND, "QUEUES": ["default", "mail"], "OPTIONS": options}})


def with_tasks(site: Site, mode: str, **options: Any) -> dict[str, Any]:
    return {"SHOP_TASKS": tasks(**options), "SHOP_MODE": mode}


@pytest.mark.parametrize(
    "mode",
    [
        "in_transaction",
        pytest.param("on_commit", marks=pytest.mark.chaos),
        pytest.param("now", marks=pytest.mark.chaos),
    ],
)
def test_the_cases_of_the_backend_pass(postgres_server: PostgresServer, mode: str) -> None:
    with new_site(postgres_server) as site:
        done = site.run(
            "manage.py", "test", "--noinput", "shop.task_cases", **with_tasks(site, mode, enqueue=mode)
        )

        assert 0 == done.returncode, done.stdout + done.stderr
        assert "Ran 14 tests" in done.stderr


def test_the_cases_pass_on_another_storage(postgres_server: PostgresServer, tmp_path: Path) -> None:
    with new_site(postgres_server) as site:
        env = with_tasks(site, "on_commit", url=f"file:{tmp_path}/jobs")
        done = site.run("manage.py", "test", "--noinput", "shop.task_cases", **env)

        assert 0 == done.returncode, done.stdout + done.stderr


ENQUEUE = """
import django; django.setup()
import time
from shop.models import Order
from shop.tasks import write_invoice
order = Order.objects.create()
result = write_invoice.enqueue(order.pk)
while not result.is_finished:
    time.sleep(0.05)
    result.refresh()
print(result.return_value)
"""


def test_the_management_command_runs_tasks_until_it_is_stopped(postgres_server: PostgresServer) -> None:
    with new_site(postgres_server) as site:
        site.create_tables()
        env = with_tasks(site, "in_transaction")
        worker = subprocess.Popen(
            [sys.executable, "manage.py", "dibs_worker", "--processes", "1", "--", "--grace", "5"],
            cwd=site.folder,
            env={**site.env, **env},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            done = site.run("-c", ENQUEUE, **env)
            assert 0 == done.returncode, done.stderr
            assert done.stdout.startswith("invoice-"), done.stdout
        finally:
            worker.send_signal(signal.SIGTERM)
            _, output = worker.communicate(timeout=30)

        assert 0 == worker.returncode, output


def test_a_worker_of_another_backend_is_refused(postgres_server: PostgresServer) -> None:
    with new_site(postgres_server) as site:
        package = "django.tasks" if sys.version_info >= (3, 12) else "django_tasks"
        other = {
            "default": {"BACKEND": f"{package}.backends.dummy.DummyBackend", "QUEUES": ["default", "mail"]}
        }
        done = site.run("manage.py", "dibs_worker", SHOP_TASKS=json.dumps(other))

        assert 0 != done.returncode
        assert "set its BACKEND to dibs.django_tasks.backend.DibsBackend" in done.stderr


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("builtins.LookupError", LookupError),
        ("json.decoder.JSONDecodeError", json.JSONDecodeError),
        ("antigravity.Error", JobFailed),
        ("json.antigravity.Error", JobFailed),
        ("os.path.join", JobFailed),
        ("os.path", JobFailed),
        ("os", JobFailed),
        ("...", JobFailed),
        ("", JobFailed),
    ],
)
def test_the_class_of_a_stored_error_is_looked_up_and_never_imported(path: str, found: type) -> None:
    error = StoredTaskError(exception_class_path=path, traceback="")

    assert error.exception_class is found
    assert "antigravity" not in sys.modules
