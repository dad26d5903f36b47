"""The same with pytest-django."""

import pytest
from asgiref.sync import sync_to_async
from django.db import connections
from django.test import AsyncClient, Client

from dibs.testing import assert_enqueued, using
from project.jobs import app, write_invoice
from shop.models import Order
from shop.tests import remove_jobs, waiting


@pytest.fixture
def jobs():
    with using(app, threads=False) as jobs:
        yield jobs


def test_without_a_database_no_job_is_enqueued() -> None:
    with pytest.raises(RuntimeError, match="Database access not allowed"):
        write_invoice.sync.enqueue(1)


def test_a_job_is_enqueued_after_the_commit(db, jobs, client, django_capture_on_commit_callbacks) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        order = client.get("/order").json()["id"]
    assert_enqueued(write_invoice.sync, args=(order,))

    assert 1 == jobs.sync.run_due().total("completed")
    assert f"invoice-{order}.pdf" == Order.objects.get(pk=order).invoice


def test_a_run_sees_the_committed_rows(transactional_db, jobs, client) -> None:
    order = client.get("/order").json()["id"]

    assert 1 == jobs.sync.run_due().total("completed")
    assert f"invoice-{order}.pdf" == Order.objects.get(pk=order).invoice


def test_a_joined_job_is_rolled_back(db, client) -> None:
    order = client.get("/order_joined").json()["id"]

    assert Order.objects.filter(pk=order).exists()
    assert 0 == waiting()


@pytest.mark.parametrize("number", range(4))
def test_a_worker_runs_the_jobs(transactional_db, number) -> None:
    order = Client().get("/order").json()["id"]
    report = app.sync.work(until="empty", handle_signals=False)
    remove_jobs()

    assert 1 == report.total("completed")
    assert f"invoice-{order}.pdf" == Order.objects.get(pk=order).invoice


@pytest.mark.parametrize("number", range(2))
async def test_async_views(transactional_db, number) -> None:
    order = (await AsyncClient().get("/order_async")).json()["id"]
    status = await write_invoice.queue.get(str(order))
    await write_invoice.queue.clear()
    # Under pytest-asyncio, Django keeps the connection of its thread for async queries.
    await sync_to_async(connections.close_all)()

    assert "waiting" == status.state
