"""Cases of the task backend, which `manage.py test shop.task_cases` runs."""

import asyncio
import os
from datetime import UTC, datetime, timedelta
from unittest.mock import patch

from django.core.exceptions import ImproperlyConfigured
from django.db import transaction
from django.test import TransactionTestCase

from dibs import QueueFull
from dibs.client.calls.task_payload import PayloadMismatch
from dibs.django_tasks import api
from dibs.django_tasks.backend import DibsBackend
from dibs.django_tasks.task_apps import TASKS, find_task
from shop.models import Order
from shop.tasks import describe, send, unwritable, write_invoice

BACKEND = api.task_backends["default"]
QUEUES = ["default", "mail"]
STATUS = api.TaskResultStatus
MODE = os.environ["SHOP_MODE"]


def work() -> None:
    """Run all tasks that are due, in this process."""
    BACKEND.app.sync.work(QUEUES, until="empty", handle_signals=False)


class BackendCases(TransactionTestCase):
    def setUp(self) -> None:
        self.enterContext(BACKEND.app.sync)
        for queue in (BACKEND.app.queue(name).sync for name in QUEUES):
            for status in queue.list("waiting"):
                queue.cancel(status.id)

    def test_a_task_runs_and_returns_its_result(self) -> None:
        order = Order.objects.create()
        result = write_invoice.enqueue(order.pk)
        self.assertEqual(STATUS.READY, write_invoice.get_result(result.id).status)
        self.assertIsNotNone(result.enqueued_at)
        work()
        result.refresh()

        self.assertEqual((STATUS.SUCCESSFUL, f"invoice-{order.pk}.pdf"), (result.status, result.return_value))
        self.assertEqual((1, [order.pk], {}), (result.attempts, result.args, result.kwargs))
        self.assertLessEqual(result.started_at, result.finished_at)
        self.assertEqual(5, write_invoice.get_result(result.id).task.priority)
        self.assertEqual(f"invoice-{order.pk}.pdf", Order.objects.get(pk=order.pk).invoice)

    def test_a_queue_at_its_bound_refuses_or_drops_a_task(self) -> None:
        queue = BACKEND.app.queue("default").sync
        self.addCleanup(queue.configure, max_waiting=None, when_full="refuse")
        queue.configure(max_waiting=1)
        taken = describe.enqueue()
        with self.assertRaises(QueueFull):
            describe.enqueue()
        queue.configure(when_full="drop_new")
        dropped = describe.enqueue()

        self.assertIsNotNone(taken.enqueued_at)
        self.assertIsNone(dropped.enqueued_at)
        with self.assertRaises(api.TaskResultDoesNotExist):
            BACKEND.get_result(dropped.id)

    def test_a_failed_task_has_its_error(self) -> None:
        result = write_invoice.enqueue(12345)
        with self.assertLogs(api.PACKAGE, "ERROR") as logs:
            work()
        result.refresh()

        self.assertEqual(STATUS.FAILED, result.status)
        [error] = result.errors
        self.assertIs(LookupError, error.exception_class)
        self.assertIn("there is no order 12345", error.traceback)
        self.assertIn("there is no order 12345", logs.output[0])
        with self.assertRaises(ValueError):
            _ = result.return_value

    def test_an_error_of_dibs_has_a_class(self) -> None:
        result = unwritable.enqueue()
        work()
        result.refresh()

        self.assertEqual([TypeError], [error.exception_class for error in result.errors])

    def test_async_tasks_and_other_queues(self) -> None:
        async def enqueue():
            return await send.aenqueue("ada@example.org", copies=2)

        result = asyncio.run(enqueue())
        work()

        found = send.get_result(result.id)
        self.assertEqual(["ada@example.org"] * 2, found.return_value)
        self.assertEqual(("mail", {"copies": 2}), (found.task.queue_name, found.kwargs))

    def test_the_context_of_a_task(self) -> None:
        result = describe.enqueue()
        work()

        self.assertEqual([result.id, "RUNNING", 1], describe.get_result(result.id).return_value)

    def test_a_task_runs_after_its_time_and_by_priority(self) -> None:
        later = datetime.now(UTC) + timedelta(hours=1)
        result = send.using(run_after=later, priority=-3).enqueue("ada")
        found = send.get_result(result.id)

        self.assertEqual(STATUS.READY, found.status)
        self.assertLess(abs(found.task.run_after - later), timedelta(milliseconds=1))
        self.assertEqual(-3, found.task.priority)
        self.assertEqual(1, BACKEND.app.queue("mail").sync.counts().scheduled)

    def test_a_rolled_back_transaction_enqueues_nothing(self) -> None:
        result = None
        with self.assertRaises(RuntimeError), transaction.atomic():
            result = send.enqueue("ada")
            raise RuntimeError

        if MODE == "now":
            self.assertEqual(STATUS.READY, send.get_result(result.id).status)
        else:
            with self.assertRaises(api.TaskResultDoesNotExist):
                send.get_result(result.id)

    def test_a_committed_transaction_enqueues_the_task(self) -> None:
        with transaction.atomic():
            result = send.enqueue("ada")
            self.assertEqual(MODE == "on_commit", result.enqueued_at is None)

        self.assertEqual(STATUS.READY, send.get_result(result.id).status)

    def test_signals_are_sent_at_each_step(self) -> None:
        seen = []

        def receive(signal, task_result, **_):
            seen.append((task_result.id, str(task_result.status)))

        for signal in (api.task_enqueued, api.task_started, api.task_finished):
            signal.connect(receive)
            self.addCleanup(signal.disconnect, receive)
        good, bad = send.enqueue("ada"), write_invoice.enqueue(12345)
        work()

        self.assertCountEqual(
            [
                *((result.id, state) for result in (good, bad) for state in ("READY", "RUNNING")),
                (good.id, "SUCCESSFUL"),
                (bad.id, "FAILED"),
            ],
            seen,
        )

    def test_arguments_that_are_no_json_are_refused(self) -> None:
        with self.assertRaises(TypeError):
            send.enqueue(object())
        self.assertEqual(0, BACKEND.app.queue("mail").sync.counts().waiting)

    def test_an_unknown_result_does_not_exist(self) -> None:
        for id in ("", "default/", "default/x", "other/x", "x"):
            with self.assertRaises(api.TaskResultDoesNotExist):
                send.get_result(id)

    def test_a_worker_without_the_task_leaves_it_to_another_worker(self) -> None:
        with patch.dict(TASKS, clear=True), self.assertRaisesRegex(PayloadMismatch, "'shop.tasks.send'"):
            find_task("shop.tasks.send")

    def test_bad_options_name_the_option(self) -> None:
        for options, message in (
            ({"enqueue": "soon"}, "'enqueue'.*'soon'.*in_transaction"),
            ({"nonsense": 1}, "nonsense"),
            ({"timeout": "x"}, "timeout"),
            ({"url": "file:./jobs", "enqueue": "in_transaction"}, "needs a URL of the form django:ALIAS"),
        ):
            with self.assertRaisesRegex(ImproperlyConfigured, message):
                DibsBackend("default", {"OPTIONS": options})
        with self.assertRaisesRegex(ImproperlyConfigured, "'QUEUES'. is empty"):
            DibsBackend("default", {"QUEUES": []})
