"""Blocking and async views that enqueue jobs. Each answers with the id of the order as JSON."""

import os
import threading

from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse

from project.jobs import write_invoice
from shop.models import Order


def order(request: HttpRequest) -> JsonResponse:
    """Enqueue after the commit."""
    with transaction.atomic():
        order = Order.objects.create()
        transaction.on_commit(lambda: write_invoice.sync.options(id=str(order.pk)).enqueue(order.pk))
    return JsonResponse({"id": order.pk})


def order_joined(request: HttpRequest) -> JsonResponse:
    """Enqueue in the transaction of the order. With ?fail=1, raise and roll back both."""
    with transaction.atomic():
        order = Order.objects.create()
        write_invoice.sync.options(id=str(order.pk), connection=connection).enqueue(order.pk)
        if "fail" in request.GET:
            raise ValueError(f"order {order.pk} fails")
    return JsonResponse({"id": order.pk})


async def order_async(request: HttpRequest) -> JsonResponse:
    order = await Order.objects.acreate()
    await write_invoice.options(id=str(order.pk)).enqueue(order.pk)
    return JsonResponse({"id": order.pk})


def order_nested(request: HttpRequest) -> JsonResponse:
    """Enqueue from blocking code that awaits."""
    order = Order.objects.create()
    async_to_sync(write_invoice.options(id=str(order.pk)).enqueue)(order.pk)
    return JsonResponse({"id": order.pk})


async def order_nested_async(request: HttpRequest) -> JsonResponse:
    """Enqueue by .sync from a thread that an async view waits for, and read the job on the event loop."""
    response = await sync_to_async(order_nested)(request)
    status = await sync_to_async(order)(request)
    assert response.status_code == status.status_code == 200
    return status


def state(request: HttpRequest, pk: int) -> JsonResponse:
    status = write_invoice.queue.sync.get(str(pk))
    return JsonResponse({"state": status.state if status else None})


async def state_async(request: HttpRequest, pk: int) -> JsonResponse:
    status = await write_invoice.queue.get(str(pk))
    return JsonResponse({"state": status.state if status else None})


def process(request: HttpRequest) -> JsonResponse:
    """Return the process id and the names of its threads."""
    names = sorted(thread.name for thread in threading.enumerate())
    return JsonResponse({"pid": os.getpid(), "threads": names})
