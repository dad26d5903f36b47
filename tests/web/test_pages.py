"""The pages of the dashboard on each storage."""

from __future__ import annotations

import asyncio
import html
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from dibs import Dibs, Queue
from dibs.model.job import Error, JobData, NewJob
from dibs.model.requests import EnqueueRequest, RetryLater, Settlement
from dibs.web import dibs_web
from dibs.web.reading import failures, story
from dibs.web.text import with_code
from tests.web import shop
from tests.web.conftest import HOST, Browser, browse, may
from tests.web.jobs import claim, complete, fail, storage_of

#: Ids that are hard to show and to send: markup, direction, line breaks, paths and the longest one.
HOSTILE = (
    "<script>alert(1)</script>",
    "\u202eevil\u202c",
    "line\nbreak\r\nand\ttab",
    "../a/b?c=d&e=f#g%2F+h",
    "'\"><img src=x onerror=alert(1)>",
    "{{ 7*7 }}",
    "é" * 256,
    " ",
)
PAGES = ("/", "/failures", "/periodic", "/workers", "/place", "/search", "/enqueue", "/queue", "/job")


@pytest.fixture
async def reader(any_app: Dibs) -> AsyncIterator[Browser]:
    async with browse(dibs_web(any_app, allow="read")) as browser:
        yield browser


async def test_a_page_of_a_damaged_storage_says_what_to_do(tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'jobs'}"
    async with Dibs(url) as app:
        await app.queue("q").enqueue({})
        await app.queue("q").enqueue({})
    commit = sorted(tmp_path.glob("jobs/commits/*"))[-2]
    content = commit.read_bytes()
    commit.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
    async with browse(dibs_web(url, allow="read")) as browser:
        page = await browser.get("/")

    assert 503 == page.status_code
    assert commit.name in page.text
    assert "of a damaged file in commits, remove this file and all with higher numbers" in page.text


async def test_the_overview_lists_a_queue_with_its_counts(reader: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue_many([{"n": n} for n in range(3)])
    await any_queue.pause()

    page = await reader.text("/", filter=any_queue.name)

    assert f"/queue?name={any_queue.name}" in page
    assert '<td class="num" data-label="Waiting">3</td>' in page
    assert "paused</span>" in page


@pytest.mark.parametrize(
    "state", ["waiting", "scheduled", "active", "blocked", "completed", "failed", "cancelled"]
)
async def test_the_page_of_a_queue_lists_the_jobs_of_a_state(
    reader: Browser, any_queue: Queue, state: str
) -> None:
    await complete(any_queue, "completed-1")
    await fail(any_queue, "failed-1")
    await any_queue.enqueue({}, id="cancelled-1", delay=60)
    await any_queue.cancel("cancelled-1")
    await any_queue.enqueue({}, id="active-1")
    await claim(any_queue)
    await any_queue.enqueue({}, id="active-1")
    await any_queue.enqueue({}, id="waiting-1")
    await any_queue.enqueue({}, id="scheduled-1", delay=600)

    page = await reader.text("/queue", name=any_queue.name, state=state)
    id = "active-1" if state == "blocked" else f"{state}-1"

    assert f'data-key="j-{id}"' in page
    assert f'aria-current="true">{state} <b>' in page


async def test_a_queue_is_read_page_by_page(reader: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue_many([any_queue.bind({}, id=f"job-{n:02}") for n in range(30)])

    first = await reader.text("/queue", name=any_queue.name)
    address = html.unescape(first.partition('">Next page')[0].rpartition('href="')[2])
    second = await reader.text(address)

    ids = [f"job-{n:02}" for n in range(30)]
    assert 25 == sum(f">{id}<" in first for id in ids)
    assert ids == [id for id in ids if (f">{id}<" in first) != (f">{id}<" in second)]
    assert "First page" in second


async def test_the_page_of_an_id_shows_its_three_parts(reader: Browser, any_queue: Queue) -> None:
    await complete(any_queue, "a", b'{"answer": 42}')
    await any_queue.enqueue({"color": "blue"}, id="a", attributes={"team": "red"}, key="customer-7")
    await claim(any_queue)
    await any_queue.enqueue({"color": "green"}, id="a")

    page = await reader.text("/job", queue=any_queue.name, id="a")

    for text in ("Current", "Successor", "Outcome", "blue", "green", "42", "red", "customer-7", "host:1"):
        assert text in page


async def test_the_story_of_an_id_comes_from_the_log(reader: Browser, any_queue: Queue) -> None:
    await fail(any_queue, "a", "shop.Broken", "the first time")
    await complete(any_queue, "b")
    await complete(any_queue, "a")

    page = await reader.text("/job", queue=any_queue.name, id="a")
    story = page.partition('id="story"')[2]

    assert 2 == story.count("<li ")
    assert story.index("k-completed") < story.index("k-failed")
    assert "the first time" in story


async def test_the_story_of_a_job_that_has_not_ended_says_what_it_does_now(
    reader: Browser, any_queue: Queue
) -> None:
    storage = await storage_of(any_queue)
    await any_queue.enqueue({}, id="a")
    await any_queue.enqueue({}, id="later", delay=60)
    waiting = await reader.text("/job", queue=any_queue.name, id="later")
    [(id, fence)] = await claim(any_queue)
    action = RetryLater(delay=0, error=Error(type="shop.Down", message="no route"))
    await storage.settle(any_queue.name, [Settlement(id=id, fence=fence, action=action)])
    await claim(any_queue)
    running = await reader.text("/job", queue=any_queue.name, id="a")

    assert ["waiting", "queued"] == kinds_of_the_story(waiting)
    assert ["active", "retried", "queued"] == kinds_of_the_story(running)
    assert "waited" in running.partition("k-active")[2].partition("k-retried")[0]
    assert "on <bdi>host:1</bdi>" in running


async def test_the_story_is_read_from_the_enqueue_on_and_then_the_log_before(
    writer: Browser, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(story, "PAGE_SIZE", 2)
    monkeypatch.setattr(story, "MAX_EVENTS", 2)
    await fail(any_queue, "a", message="long ago")
    for number in range(3):
        await complete(any_queue, f"before-{number}")
    await asyncio.sleep(0.01)  # so that the enqueue has a later time than the events
    await any_queue.enqueue({}, id="a", delay=60)
    for number in range(3):
        await complete(any_queue, f"after-{number}")
    pages = []
    for _ in range(6):
        pages.append(await writer.text("/job", queue=any_queue.name, id="a"))
        # A write begins a new reading.
        await writer.post("resume", {"queue": any_queue.name})

    assert ["waiting", "queued"] == kinds_of_the_story(pages[0])
    assert "Reading goes on" in pages[0]
    assert ["waiting", "queued", "failed"] == kinds_of_the_story(pages[-1])
    assert "Reading goes on" not in pages[-1]


def kinds_of_the_story(page: str) -> list[str]:
    return re.findall(r'<li class="k-([a-z]+)"', page.partition('id="story"')[2])


async def test_failures_are_grouped_by_type_and_by_the_pattern_of_the_message(
    reader: Browser, any_queue: Queue
) -> None:
    for number in range(3):
        message = (
            f"user 'u{number}' of {'abc'[number]}@example.org unknown, code {number}.{number}:{number}, "
            f"request 7f3a{number}c9e-b8d{number} {'long' * 4000}"
        )
        await fail(any_queue, f"user-{number}", "smtp.Refused", message)
    await fail(any_queue, "other", "smtp.Refused", "greylisted")

    page = await reader.text("/failures", queue=any_queue.name)
    groups = page.split('<article class="group"')[1:]

    assert 2 == len(groups)
    assert "<b>3</b>" in groups[0]
    assert "user &#39;u2&#39; of c@example.org unknown, code 2.2:2" in groups[0]
    address = html.unescape(groups[0].partition('<h2><a href="')[2].partition('"')[0])
    group = await reader.text(address)
    assert "Traceback of user-2" in group
    assert "other" not in group.partition("<tbody>")[2]


async def test_a_group_lists_its_newest_failures(
    reader: Browser, any_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "MAX_LISTED", 2)
    for number in range(5):
        await fail(any_queue, f"job-{number}", message="the same")
        await asyncio.sleep(0.002)
    page = await reader.text("/failures", queue=any_queue.name)
    address = html.unescape(page.partition('<h2><a href="')[2].partition('"')[0])

    listed = (await reader.text(address)).partition("<tbody>")[2]

    assert ["job-4", "job-3"] == re.findall(r">(job-\d)<", listed)


async def test_a_periodic_task_is_listed_with_its_schedule_and_next_run() -> None:
    async with shop.app.using("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        await shop.clean.options(id="schedule", delay=7200).enqueue()

        page = await reader.text("/periodic")

    assert "every 2 h" in page
    assert '<td data-label="Next runs"><time ' in page


async def test_workers_are_listed_by_the_jobs_that_they_hold(any_url: str) -> None:
    async with Dibs(any_url) as app, browse(dibs_web(app, allow="read")) as reader:
        await app.queue("q").enqueue({}, id="held-job")
        await claim(app.queue("q"))

        page = await reader.text("/workers")

    assert "host:1" in page
    assert "/job?queue=q&amp;id=held-job" in page


async def test_the_storage_is_described(reader: Browser, any_app: Dibs, any_queue: Queue) -> None:
    await any_queue.configure(max_active=7, max_waiting=9, fair=True, shares={"acme": 0})

    page = await reader.text("/place")

    assert html.escape(any_app.storage.durability).replace("&#x27;", "&#39;") in page
    for text in ("max_active: 7", "max_waiting: 9", "fair: keys take turns", "shares: acme paused"):
        assert text in page


async def test_the_findings_of_an_examination_are_shown(any_url: str) -> None:
    async with Dibs(any_url) as app, browse(dibs_web(app, allow="read")) as reader:
        await app.queue("lonely").enqueue({}, id="a")
        async with asyncio.timeout(60):
            while "is being examined" in (page := await reader.text("/place")):  # noqa: ASYNC110
                await asyncio.sleep(0.6)

    assert "queue-not-served" in page
    assert "lonely" in page.partition('id="findings"')[2].partition("</section>")[0]


async def test_each_page_has_a_banner_of_the_errors_that_were_found(any_url: str) -> None:
    async with Dibs(any_url) as app, browse(dibs_web(app, allow="read")) as reader:
        await app.queue("calm").enqueue({}, id="a", delay=3600)
        await reader.get("/place")
        calm = await reader.text("/")
    assert "alarms" not in calm

    async with Dibs(any_url) as app, browse(dibs_web(app, allow="read")) as reader:
        await app.queue("lonely").enqueue({}, id="a")
        # A first view waits for the examination up to a second.
        async with asyncio.timeout(60):
            while "alarms" not in await reader.text("/"):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        pages = [await reader.text(path) for path in PAGES if path not in ("/queue", "/job")]
        pages += [
            await reader.text(path, name="lonely", queue="lonely", id="a") for path in ("/queue", "/job")
        ]

    for page in pages:
        banner = page.partition('<div class="banner bad alarms"')[2].partition("</div>")[0]
        assert "1 due jobs wait, and no worker serves them" in banner
        assert 'href="/queue?name=lonely"' in banner
        assert 'href="/place#findings"' in banner


async def test_a_queue_that_nobody_serves_says_so(reader: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({}, delay=3600)
    calm = await reader.text("/queue", name=any_queue.name)
    await any_queue.enqueue_many([{}] * 3)
    page = await reader.text("/queue", name=any_queue.name, state="waiting")
    overview = await reader.text("/", filter=any_queue.name)

    assert "no worker" not in calm
    assert "3 jobs are due, and no worker that lives serves this queue" in page
    assert '<span class="state s-failed">no worker</span>' in overview


async def test_waiting_jobs_have_the_same_number_on_each_page(reader: Browser, any_queue: Queue) -> None:
    """Scheduled jobs wait, too, as in `counts` of Python and of the command line."""
    await any_queue.enqueue_many([{}] * 2)
    for _ in range(3):
        await any_queue.enqueue({}, delay=3600)
    overview = await reader.text("/", filter=any_queue.name)
    queue = await reader.text("/queue", name=any_queue.name)

    assert 5 == (await any_queue.counts()).waiting
    assert 'data-label="Waiting">5</td>' in overview
    assert "waiting <b>5</b>" in queue
    assert "scheduled <b>3</b>" in queue


async def test_jobs_that_are_retried_show_before_one_has_failed(reader: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue_many([{}] * 3)
    calm = await reader.text("/queue", name=any_queue.name, state="waiting")
    storage = await storage_of(any_queue)
    action = RetryLater(delay=3_600_000, error=Error(type="shop.Down", message="no <route>"))
    runs = await claim(any_queue, 3)
    await storage.settle(
        any_queue.name, [Settlement(id=id, fence=fence, action=action) for id, fence in runs]
    )
    overview = await reader.text("/", filter=any_queue.name)
    queue = await reader.text("/queue", name=any_queue.name)
    failures = await reader.text("/failures", queue=any_queue.name)

    assert "shop.Down" not in calm
    assert "3 retrying</strong>" in overview
    assert f'<a class="bad-text" href="/failures?queue={any_queue.name}">3</a>' in overview
    for page in (queue, failures):
        section = page.partition('id="retried"')[2].partition("</section>")[0]
        assert 3 == len([word for word in (">3</b>", "shop.Down", "no &lt;route&gt;") if word in section])
    assert "0 failed jobs, 3 retrying" in failures
    assert "No job has failed" not in failures


async def test_an_id_is_found_in_its_queue(reader: Browser, any_queue: Queue) -> None:
    await any_queue.enqueue({}, id="needle-1")

    answer = await reader.get("/search", text="needle-1")

    assert 303 == answer.status_code
    assert f"/job?queue={any_queue.name}&id=needle-1" == answer.headers["location"]
    assert "no queue has it in its name" in await reader.text("/search", text="no-such-id")


@pytest.mark.parametrize("id", HOSTILE)
async def test_a_hostile_id_is_escaped_and_its_links_lead_to_it(
    reader: Browser, any_queue: Queue, id: str
) -> None:
    await any_queue.enqueue({"text": id}, id=id, attributes={"note": id})

    listed = await reader.text("/queue", name=any_queue.name)
    address = html.unescape(listed.partition('class="id" href="')[2].partition('"')[0])
    page = await reader.text(address)

    assert 'data-label="Due"' in listed
    assert '<h2>Current <span class="state s-waiting">' in page
    for text in (listed, page):
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "\u202e" not in text


async def test_hostile_errors_and_holders_are_escaped(reader: Browser, any_queue: Queue) -> None:
    await fail(any_queue, "a", "<b>Type</b>", "<script>alert('message')</script>\u202e")

    for path, params in (
        ("/failures", {"queue": any_queue.name}),
        ("/queue", {"name": any_queue.name, "state": "failed"}),
        ("/job", {"queue": any_queue.name, "id": "a"}),
    ):
        page = await reader.text(path, **params)

        assert "&lt;b&gt;Type&lt;/b&gt;" in page
        assert "<script>alert" not in page
        assert "\u202e" not in page


@pytest.mark.parametrize("name", HOSTILE[:5])
async def test_a_hostile_name_of_a_queue_is_escaped(name: str) -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow=may("write"))) as reader:
        await app.queue(name).enqueue({}, id="a")

        overview = await reader.text("/")
        address = html.unescape(overview.partition('scope="row" class="name"><a href="')[2].partition('"')[0])
        page = await reader.text(address)

    assert 'data-key="j-a"' in page
    for text in (overview, page):
        assert "<script>alert" not in text
        assert "<img" not in text


async def test_a_payload_that_is_not_json_is_shown_as_bytes(reader: Browser, any_queue: Queue) -> None:
    request = EnqueueRequest(job=NewJob(id="raw", data=JobData(payload=b"\x00\xff<i>")))
    await (await storage_of(any_queue)).enqueue(any_queue.name, [request])

    page = await reader.text("/job", queue=any_queue.name, id="raw")

    assert "\\x00\\xff&lt;i&gt;" in page
    assert "cannot decode" in page


async def test_arguments_of_a_task_have_the_names_of_its_parameters() -> None:
    async with shop.app.using("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        await shop.thumbnail.options(id="a").enqueue("a.png", width=7)

        page = await reader.text("/job", queue="thumbs", id="a")

    assert "<dt><code>path</code></dt>" in page
    assert "<dt><code>width</code></dt>" in page


@pytest.mark.parametrize("path", PAGES)
async def test_each_page_is_small_and_needs_no_other_server(reader: Browser, path: str) -> None:
    page = await reader.text(path, **({"queue": "q", "id": "a"} if path == "/job" else {"name": "q"}))
    links = [part.partition('"')[0] for part in page.split('src="')[1:] + page.split("<link")[1:]]
    sizes = [len(page)]
    for name in ("dibs.css", "dibs.js", "first_paint.js", "icon.svg"):
        address = "/static/" + page.partition(f"static/{name}")[2].partition('"')[0]
        file = await reader.get(f"/static/{name}{address.removeprefix('/static/')}")
        assert "immutable" in file.headers["cache-control"]
        sizes.append(len(file.content))

    assert sum(sizes) < 100_000
    assert [] == [link for link in links if "//" in link]
    assert "style=" not in page
    assert "<script>" not in page


async def test_a_thousand_queues_fit_on_pages() -> None:
    async with Dibs("memory:") as app, browse(dibs_web(app, allow="read")) as reader:
        for number in range(1000):
            await app.queue(f"queue-{number:04}").enqueue({})

        first = await reader.get("/")
        last = await reader.text("/", page="20")

    assert len(first.content) < 75_000
    assert "Page 1 of 20, 1,000 queues" in first.text
    assert "queue-0999" in last


async def test_a_queue_that_does_not_exist_has_an_empty_page(reader: Browser) -> None:
    assert "does not know this queue" in await reader.text("/queue", name="no-such-queue")
    assert "has no job with this id" in await reader.text("/job", queue="no-such-queue", id="a")


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/job", {"queue": "", "id": "a"}),
        ("/queue", {"name": ""}),
        ("/queue", {"name": "x" * 501}),
        ("/job", {"queue": "x" * 501, "id": "a"}),
    ],
)
async def test_a_bad_address_is_refused_with_a_reason(
    reader: Browser, path: str, params: dict[str, str]
) -> None:
    answer = await reader.get(path, **params)

    assert 400 == answer.status_code
    assert "This page cannot be shown" in answer.text


async def test_an_unknown_address_is_a_page_with_a_way_back(reader: Browser) -> None:
    answer = await reader.get("/nothing/here")

    assert 404 == answer.status_code
    assert "There is no page at this address." in answer.text
    assert 'href="/"' in answer.text


async def test_links_of_a_mounted_dashboard_lead_to_its_path() -> None:
    """Also behind a proxy that removes a prefix, which the server passes as root_path."""
    async with Dibs("memory:") as app:
        await app.queue("q").enqueue({}, id="a")
        mounted = Starlette(routes=[Mount("/jobs", dibs_web(app, allow=may("write")))])
        transport = httpx2.ASGITransport(app=mounted, root_path="/intern")
        async with httpx2.AsyncClient(transport=transport, base_url=HOST) as client:
            page = await client.get("/intern/jobs/")
            written = await client.post("/intern/jobs/do/pause?queue=q", headers={"Origin": HOST})

    links = re.findall(r'(?:href|src|action|data-live)="([^"]+)"', page.text)
    assert [] == [each for each in links if not each.startswith(("/intern/jobs/", "#"))]
    assert "/intern/jobs/queue?name=q&did=pause" == written.headers["location"]


def test_code_in_backticks_is_marked_and_escaped() -> None:
    assert "run <code>dibs &lt;b&gt;</code>" == with_code("run `dibs <b>`")
    assert "a ` alone" == with_code("a ` alone")


async def run_with_output(queue: Queue) -> tuple[str, int]:
    """Enqueue job a, and claim it. Skip the test on a storage without output."""
    if not (await storage_of(queue)).capabilities.output:
        pytest.skip("the storage keeps no output")
    await queue.enqueue({}, id="a")
    [run] = await claim(queue)
    return run


async def write(queue: Queue, run: tuple[str, int], *texts: str) -> None:
    storage = await storage_of(queue)
    await storage.report(queue.name, *run, output=[f'v"{text}"'.encode() for text in texts])


async def page_with(reader: Browser, queue: Queue, text: str) -> str:
    """Return the page of job a once a reading of it has a text: readings have a rest between them."""
    async with asyncio.timeout(30):
        while text not in (page := await reader.text("/job", queue=queue.name, id="a")):  # noqa: ASYNC110 - a server reads the page
            await asyncio.sleep(0.1)
    return page


async def test_the_page_of_a_job_has_its_output_with_a_line_between_runs(
    reader: Browser, any_queue: Queue
) -> None:
    run = await run_with_output(any_queue)
    await write(any_queue, run, *(f"first {number}" for number in range(150)))
    retry = RetryLater(error=Error(type="OSError"))
    storage = await storage_of(any_queue)
    await storage.settle(any_queue.name, [Settlement(id=run[0], fence=run[1], action=retry)])
    [again] = await claim(any_queue)
    await write(any_queue, again, "<b>second</b>")
    page = await reader.text("/job", queue=any_queue.name, id="a")
    await write(any_queue, again, *(f"third {number}" for number in range(100)))
    longer = await page_with(reader, any_queue, "third 99")

    assert page.index("first 0&#34;") < page.index("attempt 2") < page.index("&lt;b&gt;second")
    assert "Older output is left out" not in page
    assert "Older output is left out" in longer
    assert "first 50&#34;" not in longer
    assert longer.index("first 149&#34;") < longer.index("attempt 2") < longer.index("third 99&#34;")


async def test_a_log_record_is_shown_as_a_line(reader: Browser, any_queue: Queue) -> None:
    run = await run_with_output(any_queue)
    record = {
        "time": "2026-11-30T16:00:00.123Z",
        "level": "ERROR",
        "logger": "shop",
        "message": "no <room>",
    }
    chunks = [b"l" + json.dumps(value).encode() for value in ({**record, "exception": "Trace\n x"}, {"a": 1})]
    await (await storage_of(any_queue)).report(any_queue.name, *run, output=chunks)
    page = await reader.text("/job", queue=any_queue.name, id="a")

    assert "ERROR    shop: no &lt;room&gt;\nTrace\n x</pre>" in page
    assert "&#34;a&#34;: 1" in page


async def test_the_output_of_a_job_that_is_forgotten_leaves_the_page(
    reader: Browser, any_queue: Queue
) -> None:
    run = await run_with_output(any_queue)
    await write(any_queue, run, "old")
    assert "old&#34;" in await reader.text("/job", queue=any_queue.name, id="a")
    await any_queue.forget("a")
    await any_queue.enqueue({}, id="a")
    [run] = await claim(any_queue)
    await write(any_queue, run, "new")
    page = await page_with(reader, any_queue, "new&#34;")

    assert "old&#34;" not in page
