"""The jobs of the project."""

from django.conf import settings

from dibs import Dibs
from dibs.django import close_old_connections

app = Dibs(settings.DIBS_URL)
app.middleware(run=close_old_connections)


@app.task(queue="invoice", timeout=30)
def write_invoice(order: int) -> str:
    from shop.models import Order

    name = f"invoice-{order}.pdf"
    if not Order.objects.filter(pk=order).update(invoice=name):
        raise LookupError(f"there is no order {order}")
    return name


@app.task(queue="receipt", timeout=30)
async def write_receipt(order: int) -> str:
    from shop.models import Order

    await Order.objects.filter(pk=order).aupdate(receipt=f"receipt-{order}.pdf")
    return f"receipt-{order}.pdf"
