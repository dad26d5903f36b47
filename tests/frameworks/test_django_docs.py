"""The code of docs/howto/django.md, in a project with a Postgres database."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dibs_conformance.servers import PostgresServer
from tests.docs.pages import Page
from tests.frameworks.django_project import FOLDER, Site, new_site
from tests.source import PROJECT

URLS = """
from django.urls import path
from shop import views

urlpatterns = [
    path("order", views.order),
    path("order_in_one_transaction", views.order_in_one_transaction),
    path("state/<int:order>", views.state),
]
"""


@pytest.fixture
def documented_site(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Site]:
    """The project whose files are replaced by those of the page."""
    folder = Path(shutil.copytree(FOLDER, tmp_path / "django_project"))
    Page("howto/django.md").save(folder)
    (folder / "project" / "urls.py").write_text(URLS)
    with new_site(postgres_server, folder) as site:
        yield site


@pytest.mark.parametrize(
    "words",
    [
        ("manage.py", "test", "--noinput"),
        ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "pytest.ini", "shop/test_orders.py"),
    ],
    ids=["manage.py", "pytest"],
)
def test_the_tests_of_the_page_pass(documented_site: Site, words: tuple[str, ...]) -> None:
    done = documented_site.run(*words)

    assert 0 == done.returncode, done.stderr + done.stdout
    assert [documented_site.database] == documented_site.databases()


def test_a_worker_runs_the_jobs_of_the_page(documented_site: Site) -> None:
    documented_site.create_tables()
    order = "from django.test import Client; print(Client().post('/order').json())"
    ordered = documented_site.run("manage.py", "shell", "-v", "0", "-c", order)
    command = [sys.executable, "-m", "dibs", "worker", "shop.worker:app", "--processes", "1"]
    with subprocess.Popen(
        command, cwd=documented_site.folder, env=documented_site.env, stderr=subprocess.PIPE, text=True
    ) as worker:
        wait = (
            "from shop.jobs import write_invoice; queue = write_invoice.queue.sync; "
            "print(queue.ticket('1', queue.get('1').revision).result(wait=60))"
        )
        result = documented_site.run("manage.py", "shell", "-v", "0", "-c", wait)
        worker.terminate()
        _, log = worker.communicate(timeout=60)
    read = "from shop.models import Order; print(Order.objects.get().invoice)"
    invoice = documented_site.run("manage.py", "shell", "-v", "0", "-c", read)
    # With -P the current directory is not on sys.path, as for the script `dibs`.
    counts = documented_site.run(
        *("-P", "-m", "dibs", "counts", "--url", "django:default"),
        PYTHONPATH=os.pathsep.join([str(PROJECT / "src"), str(PROJECT / "conformance")]),
    )

    assert (0, "{'id': 1}\n") == (ordered.returncode, ordered.stdout), ordered.stderr
    assert ("invoice-1.pdf\n", 0) == (result.stdout, worker.returncode), result.stderr + log
    assert "invoice-1.pdf\n" == invoice.stdout, invoice.stderr
    assert "write_invoice" in counts.stdout, counts.stderr
    assert 0 == documented_site.sessions()
