"""A shop whose jobs fill the pages of the dashboard for its screenshots, with failures, flows and a batch."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from dibs import Dibs, Fixed, PermanentError, Rate, current_job

app = Dibs("memory:", flows=True)

#: Ids that the screenshots show.
FLOW: Final = "orders-2026-11-24"
FAILED_FLOW: Final = "orders-2026-11-23"
LARGE_FLOW: Final = "catalog-refresh"
BATCH: Final = "newsletter-november"
REPORT: Final = "customer-7"
RETURNS: Final = "returns-1182"
#: A carrier that does not answer on the day of the failed flow.
_SILENT: Final = "overseas"


@app.task(queue="emails.welcome")
async def welcome(to: str, language: str = "en") -> str:
    await asyncio.sleep(random.uniform(0.02, 0.2))
    if random.random() < 0.03:
        raise PermanentError(f"mailbox '{to}' does not exist")
    return to


@app.task(queue="thumbnails", max_active=4)
async def thumbnail(path: str, width: int = 200) -> str:
    await asyncio.sleep(random.uniform(0.2, 1.0))
    return f"{path}@{width}"


@app.task(queue="reports.monthly")
async def report(customer: int, month: str) -> str:
    job = current_job()
    for page in range(20):
        await job.progress({"page": page, "of": 20})
        await asyncio.sleep(0.4)
    return f"{customer}-{month}.pdf"


@app.task(queue="payments.refund", max_retries=4, backoff=Fixed(3), timeout="1h")
async def refund(order: int, amount: str) -> str:
    job = current_job()

    async def reserve() -> str:
        return f"reservation of {amount}"

    await job.step("reserve", reserve)
    if job.attempt < 3:
        raise ConnectionError("the payment service answered 503: try again later")
    await asyncio.sleep(1800)
    return "refunded"


@app.task(queue="cleanup", every="15m")
async def cleanup() -> None: ...


@app.task(queue="stock.sync", every="20s")
async def sync_stock() -> int:
    await asyncio.sleep(0.3)
    return 12


@app.task(queue="billing.close", cron="0 3 * * *", tz="Europe/Berlin")
async def close_books() -> None: ...


# -- the nodes of flows --------------------------------------------------------------------------------------


@app.task(queue="orders.fetch")
async def fetch(region: str) -> list[int]:
    await asyncio.sleep(0.1)
    return list(range(10))


@app.task(queue="orders.price", max_retries=0)
async def price(orders: list[int], region: str) -> int:
    await asyncio.sleep(0.1)
    if region == _SILENT:
        raise PermanentError("the tariff service of 'overseas' answered 502 after 30 s")
    return len(orders)


@app.task(queue="orders.invoice", timeout="2h")
async def invoice(totals: list[int], pause: float = 0.1) -> int:
    await asyncio.sleep(pause)
    return sum(totals)


@app.task(queue="warehouse.pick")
async def pick(count: int) -> int:
    await asyncio.sleep(0.1)
    return count


@app.task(queue="accounting.book")
async def book(count: int) -> int:
    await asyncio.sleep(0.1)
    return count


@app.task(queue="notify.team")
async def notify() -> None:
    await asyncio.sleep(0.1)


async def enqueue_orders(id: str, regions: list[str], pause: float) -> None:
    """Enqueue a flow that fetches and prices the orders of each region, and then invoices and ships them."""
    flow = app.flow(id=id)
    prices = [flow.add(price.bind(flow.add(fetch.bind(region)).output, region)).output for region in regions]
    total = flow.add(invoice.bind(prices, pause=pause))
    flow.add(pick.bind(total.output))
    booked = flow.add(book.bind(total.output))
    flow.add(notify.bind(), after=[booked], on_failure="ignore")
    await flow.enqueue()


async def enqueue_large() -> None:
    """Enqueue a flow of 603 nodes, most of which share boxes in the drawing."""
    flow = app.flow(id=LARGE_FLOW)
    parts = [flow.add(thumbnail.bind(f"part-{number}.png")) for number in range(600)]
    done = flow.add(notify.bind(), after=parts)
    flow.add(notify.bind(), after=[done])
    await flow.enqueue()


async def fill_batch() -> None:
    """Enqueue a batch of 400 members, of which some wait for an hour."""
    async with app.batch(id=BATCH, on_finish=notify.bind()) as batch:
        await batch.enqueue_many(welcome.bind(f"reader{number}@example.org") for number in range(340))
        await batch.enqueue_many(
            welcome.options(delay=3600).bind(f"later{number}@example.org") for number in range(60)
        )


async def produce() -> None:
    """Enqueue jobs for ever."""
    await app.queue("search.index").enqueue_many([{"document": number} for number in range(40)])
    await app.queue("search.index").pause()
    await app.queue("payments.refund").configure(rate=Rate(120, per="1m"), per_key=1, log_level="all")
    await refund.options(id=RETURNS, key="customer-19").enqueue(1182, "49.90 EUR")
    await welcome.options(delay=3600).enqueue("grace@example.org")
    await enqueue_orders(FAILED_FLOW, ["north", _SILENT, "south"], 0.1)
    await enqueue_orders(FLOW, ["north", "south", "west"], 3600)
    await enqueue_orders("orders-2026-11-22", ["north", "south"], 0.1)
    await enqueue_large()
    await fill_batch()
    number = 0
    while True:
        for _ in range(random.randint(0, 5)):
            number += 1
            await welcome.enqueue(f"user{number}@example.org")
        await thumbnail.options(id=f"picture-{number % 40}").enqueue(f"picture-{number % 40}.png")
        if random.random() < 0.15:
            await report.options(id=REPORT).enqueue(7, "2026-11")
        await asyncio.sleep(0.4)
