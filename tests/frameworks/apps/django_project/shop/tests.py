"""Tests of the project, as a Django team writes them. tests/frameworks runs them by manage.py."""

import json
import urllib.request

from django.db import connection, transaction
from django.test import AsyncClient, Client, LiveServerTestCase, SimpleTestCase, TestCase, TransactionTestCase

from dibs import WaitTimeout
from dibs.testing import assert_enqueued, using
from project.jobs import app, write_invoice, write_receipt
from shop.models import Order


def waiting() -> int:
    return write_invoice.queue.sync.counts().waiting


def remove_jobs() -> None:
    for queue in app.sync.queues():
        queue.clear()


class Unit(TestCase):
    """Jobs in memory."""

    def setUp(self) -> None:
        self.jobs = self.enterContext(using(app, threads=False))

    def test_a_job_is_enqueued_after_the_commit(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            order = Client().get("/order").json()["id"]

        assert_enqueued(write_invoice.sync, args=(order,), id=str(order))

    def test_no_job_is_enqueued_before_the_commit(self) -> None:
        Client().get("/order")

        self.assertEqual(0, waiting())

    def test_a_run_sees_the_rows_of_the_test(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            order = Client().get("/order").json()["id"]

        self.assertEqual(1, self.jobs.sync.run_due().total("completed"))
        self.assertEqual(f"invoice-{order}.pdf", Order.objects.get(pk=order).invoice)

    async def test_an_async_view_enqueues(self) -> None:
        order = (await AsyncClient().get("/order_async")).json()["id"]

        await assert_enqueued(write_invoice, args=(order,))

    async def test_an_async_view_enqueues_in_a_second_loop(self) -> None:
        order = (await AsyncClient().get("/order_async")).json()["id"]

        await assert_enqueued(write_invoice, args=(order,))


class UnitWithRuns(TransactionTestCase):
    """Jobs in memory, and runs at the request of the test. Handlers have connections of their own."""

    def test_a_run_sees_the_committed_rows(self) -> None:
        with using(app) as jobs:
            order = Client().get("/order").json()["id"]
            write_receipt.sync.enqueue(order)
            report = jobs.sync.run_due()

        self.assertEqual(2, report.total("completed"))
        order = Order.objects.get(pk=order)
        self.assertEqual(
            (f"invoice-{order.pk}.pdf", f"receipt-{order.pk}.pdf"), (order.invoice, order.receipt)
        )


class RolledBack(TestCase):
    """Jobs in the transaction of the test, which is rolled back."""

    def test_a_joined_job_is_rolled_back(self) -> None:
        order = Client().get("/order_joined").json()["id"]

        self.assertTrue(Order.objects.filter(pk=order).exists())
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM dibs.jobs WHERE queue = 'invoice'")
            self.assertEqual((1,), cursor.fetchone())
        self.assertEqual(0, waiting())

    def test_nothing_of_another_test_is_left(self) -> None:
        order = Client().get("/order_joined").json()["id"]

        self.assertTrue(Order.objects.filter(pk=order).exists())
        self.assertEqual(0, waiting())


class Committed(TransactionTestCase):
    """Jobs in the test database, and a worker."""

    def tearDown(self) -> None:
        remove_jobs()

    def test_a_worker_runs_the_jobs(self) -> None:
        first = Client().get("/order").json()["id"]
        second = Client().get("/order_joined").json()["id"]
        write_receipt.sync.enqueue(first)
        report = app.sync.work(until="empty", handle_signals=False)

        self.assertEqual(3, report.total("completed"))
        self.assertEqual(
            [(first, f"invoice-{first}.pdf", f"receipt-{first}.pdf"), (second, f"invoice-{second}.pdf", "")],
            list(Order.objects.order_by("pk").values_list("pk", "invoice", "receipt")),
        )

    def test_a_wait_listens_for_the_end(self) -> None:
        ticket = write_invoice.sync.enqueue(1)

        with self.assertRaises(WaitTimeout):
            ticket.result(wait=0.1)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            # Of Django, of the statement and of the listener.
            self.assertLessEqual(3, cursor.fetchone()[0])

    async def test_an_async_wait_listens_for_the_end(self) -> None:
        ticket = await write_invoice.enqueue(1)

        with self.assertRaises(WaitTimeout):
            await ticket.result(wait=0.1)

    def test_a_rollback_removes_the_job(self) -> None:
        with self.assertRaises(ValueError):
            Client().get("/order_joined?fail=1")

        self.assertEqual(0, waiting())

    def test_a_savepoint_that_is_rolled_back_removes_the_job(self) -> None:
        with transaction.atomic():
            write_invoice.sync.options(id="1", connection=connection).enqueue(1)
            with self.assertRaises(ValueError):
                Client().get("/order_joined?fail=1")

        self.assertEqual(1, waiting())

    async def test_an_async_test_enqueues(self) -> None:
        for url in ("/order_async", "/order_nested_async"):
            order = (await AsyncClient().get(url)).json()["id"]
            status = await write_invoice.queue.get(str(order))

            self.assertEqual("waiting", status.state)

    async def test_a_second_async_test_enqueues(self) -> None:
        order = (await AsyncClient().get("/order_async")).json()["id"]
        state = (await AsyncClient().get(f"/state_async/{order}")).json()

        self.assertEqual({"state": "waiting"}, state)

    def test_blocking_code_may_await(self) -> None:
        order = Client().get("/order_nested").json()["id"]

        self.assertEqual({"state": "waiting"}, Client().get(f"/state/{order}").json())


class Live(LiveServerTestCase):
    """A server on a thread."""

    def tearDown(self) -> None:
        remove_jobs()

    def test_each_kind_of_view_enqueues(self) -> None:
        for url in ("order", "order_joined", "order_async", "order_nested", "order_nested_async"):
            with urllib.request.urlopen(f"{self.live_server_url}/{url}") as reply:
                order = json.load(reply)["id"]

            self.assertEqual("waiting", write_invoice.queue.sync.get(str(order)).state)


class WithoutDatabase(SimpleTestCase):
    def test_a_test_without_database_may_not_enqueue(self) -> None:
        app.sync.close()
        try:
            with self.assertRaisesRegex(AssertionError, "not allowed in SimpleTestCase"):
                app.sync.open()
        finally:
            app._storage_handle._closed = False
