"""Tasks of Django's own task API, which workers find by the name of this module."""

from typing import Any

from shop.models import Order

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task(priority=5)
def write_invoice(order: int) -> str:
    name = f"invoice-{order}.pdf"
    if not Order.objects.filter(pk=order).update(invoice=name):
        raise LookupError(f"there is no order {order}")
    return name


@task(queue_name="mail")
async def send(address: str, *, copies: int = 1) -> list[str]:
    return [address] * copies


@task(takes_context=True)
def describe(context: Any) -> list[Any]:
    result = context.task_result
    return [result.id, str(result.status), context.attempt]


@task
def unwritable() -> Any:
    return print
