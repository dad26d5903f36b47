"""The dashboard as an ASGI application: its templates, static files and routes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, Final, cast, get_args
from urllib.parse import quote, unquote, urlencode

from attrs import define, evolve, field, frozen
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup
from sse_starlette.sse import EventSourceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from dibs.app import Dibs
from dibs.errors import BatchRefused, ConfigurationError, DibsError, Refused
from dibs.web import text
from dibs.web.bulk import Bulk, bulk_from, bulk_step, count_matching, retry_selected
from dibs.web.json_api import ApiRoutes
from dibs.web.live import Live, TooManyViewersError, Watch
from dibs.web.pages import Alarm, Page, PageKey, Pages, reason_of
from dibs.web.reading.history import History
from dibs.web.reading.source import Redact, Source, iso
from dibs.web.safety import (
    Access,
    Allow,
    ForbiddenError,
    Form,
    Guard,
    access_of,
    has_kept_access,
    read_form_body,
)
from dibs.web.text import MESSAGES
from dibs.web.writes import (
    ACTIONS,
    OFFERED,
    WRITES,
    Write,
    act,
    do_write,
    log_write,
    select,
)

HERE: Final = Path(__file__).parent
STATIC: Final = HERE / "static"
TEMPLATES: Final = HERE / "templates"
#: Pages in the navigation, and their labels.
NAVIGATION: Final = (
    ("overview", "Overview"),
    ("failures", "Failures"),
    ("flows", "Flows"),
    ("periodic", "Periodic"),
    ("workers", "Workers"),
    ("place", "Storage"),
    ("history", "History"),
)
#: Page -> the page of the navigation to which it belongs.
PARENTS: Final = {"flow": "flows", "queue": "overview", "job": "overview", "enqueue": "overview"}


@frozen
class Variant:
    """The part of a viewer on which the content of a page depends."""

    #: Path under which the dashboard is mounted, with a slash at its end.
    base: str
    access: Access

    @property
    def may_write(self) -> bool:
        return self.access == "write"


@frozen
class Frame:
    """The part of a page around its content."""

    page: Page
    params: Mapping[str, str]
    storage: str
    #: Code of the answer to the write before, as in the address; "" without one.
    done: str = ""
    #: Message of a storage that does not answer.
    down: str = ""


@cache
def _environment() -> Environment:
    """Return the templates, which all dashboards of a process compile once."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        coded=text.with_code,
        age=lambda ms: text.age(ms, _now()),
        duration=text.duration,
        iso=iso,
        line=text.one_line,
        minute=text.minute,
        number=text.number,
        plain=text.plain,
        rate=text.rate,
        points=text.spark_points,
        quoted=lambda value: quote(value, safe=""),
        visible=text.visible,
    )
    templates.globals.update(
        offered=OFFERED,
        actions=ACTIONS,
        url=_url,
        now=_now,
        static=static_name,
        messages=text.MESSAGES,
    )
    return templates


class Site:
    """Renders pages."""

    def __init__(self) -> None:
        self._templates = _environment()
        self._compiling = Lock()
        #: True once all templates are compiled.
        self.is_compiled = False

    def compile(self) -> None:
        """Compile all templates, so that no request waits for it. That takes 0.2 s of CPU time.

        Call it from any thread. Concurrent and later calls return when the templates are compiled.
        """
        with self._compiling:
            if self.is_compiled:
                return
            for name in self._templates.list_templates():
                self._templates.get_template(name)
            for file in STATIC.iterdir():
                static_name(file.name)
            self.is_compiled = True

    def content(
        self, page: Page, model: Any, variant: Variant, *, alarms: Sequence[Alarm] = (), **more: Any
    ) -> str:
        """Return the content of a page, below the banner of the alarms."""
        banner = self.render("alarms.html", variant, alarms=alarms) if alarms else ""
        template = self._templates.get_template(f"{page.name}.html")
        return banner + template.render(page=page, model=model, variant=variant, **more)

    def document(self, frame: Frame, content: str, variant: Variant) -> str:
        """Return the whole page around a content."""
        return self._templates.get_template("layout.html").render(
            frame=frame,
            page=frame.page,
            content=Markup(content),  # noqa: S704 - rendered with autoescape
            variant=variant,
            navigation=NAVIGATION,
            section=PARENTS.get(frame.page.name, frame.page.name),
        )

    def render(self, template: str, variant: Variant, **values: Any) -> str:
        """Return a template that is no page of the registry, such as the progress of a retry."""
        return self._templates.get_template(template).render(variant=variant, **values)


def _now() -> int:
    return int(time.time() * 1000)


@pass_context
def _url(context: Context, path: str, /, **params: Any) -> str:
    return link(context["variant"].base, path, **params)


def link(base: str, path: str, /, **params: Any) -> str:
    """Return the address of a page or an action. Parameters that are empty are left out."""
    used = {name: value for name, value in params.items() if value not in ("", None)}
    query = f"?{urlencode(used, quote_via=quote, safe='')}" if used else ""
    return f"{base}{'' if path == 'overview' else path}{query}"


def static_name(name: str) -> str:
    """Return the path of a static file, with a digest of its content that makes it cacheable for ever."""
    if name not in _DIGESTS:
        _DIGESTS[name] = blake2b((STATIC / name).read_bytes(), digest_size=6).hexdigest()
    return f"static/{name}?v={_DIGESTS[name]}"


_DIGESTS: dict[str, str] = {}


@define(eq=False)
class Routes:
    """The handlers of all routes."""

    pages: Pages
    live: Live
    site: Site

    def all(self) -> list[BaseRoute]:
        shown = [
            Route("/" if page.name == "overview" else f"/{page.name}", self._show(page))
            for page in self.pages.kinds.values()
        ]
        return [
            *shown,
            Route("/live/{name}", self.stream),
            Route("/report", self.report),
            *ApiRoutes(self.pages, self._changed).all(),
            Route("/do/matching", self.matching, methods=["POST"]),
            Route("/do/retry_selected", self.retry_selected, methods=["POST"]),
            Route("/do/selected", self.selected, methods=["POST"]),
            Route("/do/{action}", self.write, methods=["POST"]),
            Mount("/static", _CachedFiles(directory=STATIC)),
        ]

    def _show(self, page: Page) -> Any:
        async def show(request: Request) -> Response:
            params = dict(request.query_params)
            key = self.pages.key(page.name, params)
            frame = self._frame(page, key, params)
            try:
                model = await self.pages.read(key)
            except DibsError as error:
                return self._failed(request, frame, key, error)
            if page.name == "search" and len(model.found) == 1 and not (model.names or model.scan):
                [(queue, _)] = model.found
                base = _variant(request).base
                return RedirectResponse(link(base, "job", queue=queue, id=model.text), 303)
            if page.name == "queue":
                # Without a state in the address, the reading chose one. Live updates keep to that state.
                frame = evolve(frame, params={**frame.params, "state": model.state})
            await self.pages.source.examination.begin()
            alarms = self.pages.alarms()
            content = self.site.content(page, model, _variant(request), alarms=alarms, params=frame.params)
            return self._document(request, frame, content)

        return show

    async def stream(self, request: Request) -> Response:
        """Send the content of a page at each change, as server-sent events."""
        page = self.pages.kinds.get(request.path_params["name"])
        if page is None or page.period is None:
            return PlainTextResponse("There is no such live page.\n", 404)
        key = self.pages.key(page.name, dict(request.query_params))
        try:
            watch = self.live.join(key)
        except TooManyViewersError:
            reason = "This server has as many live viewers as it may. Reload the page to see changes.\n"
            return PlainTextResponse(reason, 503, {"Retry-After": "10"})
        return _Stream(self._events(page, watch, request), partial(self.live.leave, watch))

    async def _events(self, page: Page, watch: Watch, request: Request) -> AsyncIterator[Mapping[str, str]]:
        """Yield the updates of a page while `allow` grants the access that the viewer began with."""
        variant, params = _variant(request), dict(watch.key[1])

        def render(model: Any) -> str:
            return self.site.content(page, model, variant, alarms=watch.alarms, params=params)

        async for event, content in self.live.updates(watch, variant, render):
            if not await has_kept_access(request):
                return
            yield {"event": event, "data": content}

    async def report(self, request: Request) -> Response:
        """Show the whole report of the warehouse, under a policy of its own."""
        report = await self.pages.history.full_report()
        if report is None:
            return RedirectResponse(link(_variant(request).base, "history"), 303)
        return HTMLResponse(report.html, headers={"Content-Security-Policy": report.policy})

    # -- writes ----------------------------------------------------------------------------------------

    async def write(self, request: Request) -> Response:
        """Do one write, and go to the page that shows its result."""
        action = request.path_params["action"]
        if action not in WRITES:
            return PlainTextResponse("There is no such action.\n", 404)
        try:
            form = await read_form_body(request)
        except ForbiddenError as error:
            return self._forbidden(request, error)
        params = dict(request.query_params)
        try:
            done = await do_write(action, Write(self.pages.source, params, form))
            subject = f"job {params['id']!r}" if "id" in params else "the queue"
            log_write(action, params.get("queue", ""), subject, done.code)
        except DibsError as error:
            if action == "enqueue":
                return await self._form_again(request, params, form, error)
            return self._problem(request, error)
        finally:
            self._changed()
        base = _variant(request).base
        return RedirectResponse(link(base, done.page, **done.params, did=done.code), 303)

    async def _form_again(
        self, request: Request, params: Mapping[str, str], form: Form, error: DibsError
    ) -> Response:
        """Show the form of a refused enqueue with its values and the reason."""
        page = self.pages.kinds["enqueue"]
        key = self.pages.key("enqueue", params)
        model = await self.pages.read(key)
        more = {"params": dict(key[1]), "form": form, "problem": error_text(error)}
        content = self.site.content(page, model, _variant(request), alarms=self.pages.alarms(), **more)
        return self._document(request, self._frame(page, key, {}), content, 422)

    async def retry_selected(self, request: Request) -> Response:
        """Retry the jobs whose boxes are checked."""
        try:
            form = await read_form_body(request)
            state = await retry_selected(self.pages.source, form.all("job"))
            log_write("retry_selected", state.queue, f"{state.total} jobs", _summary(state))
        except ForbiddenError as error:
            return self._forbidden(request, error)
        except DibsError as error:
            return self._problem(request, error)
        finally:
            self._changed()
        return self._other(request, "bulk.html", 200, state=state, matching=None)

    async def selected(self, request: Request) -> Response:
        """Do an action on the selected jobs of a queue, some actions after a question."""
        queue = request.query_params.get("queue", "")
        try:
            form = await read_form_body(request)
            selection = select(queue, form.get("act"), [unquote(id) for id in form.all("job")])
            if form.get("confirmed") or not selection.action.question:
                selection = await act(await self.pages.source.storage(), selection)
                log_write(
                    selection.name, queue, f"{len(selection.ids)} selected jobs", f"{selection.done} done"
                )
        except ForbiddenError as error:
            return self._forbidden(request, error)
        except DibsError as error:
            return self._problem(request, error)
        finally:
            self._changed()
        return self._other(request, "selected.html", 200, selection=selection)

    async def matching(self, request: Request) -> Response:
        """Count the jobs of a list that match; after the confirmation do the next step of the action."""
        source, matching = self.pages.source, None
        try:
            form = await read_form_body(request)
            bulk = bulk_from(request.query_params, form)
            if form.get("confirmed"):
                bulk = await bulk_step(source, bulk)
                log_write("matching", bulk.queue, f"{bulk.read} {bulk.state} jobs", _summary(bulk))
                self._changed()
            else:
                bulk, matching = await count_matching(source, bulk)
        except ForbiddenError as error:
            return self._forbidden(request, error)
        except DibsError as error:
            return self._problem(request, error)
        return self._other(request, "bulk.html", 200, state=bulk, matching=matching)

    def _changed(self) -> None:
        self.pages.forget()
        self.live.hurry()

    # -- answers ---------------------------------------------------------------------------------------

    def _frame(self, page: Page, key: PageKey, params: Mapping[str, str]) -> Frame:
        done = params.get("did", "")
        url = self.pages.source.app._storage_handle.redacted_url  # noqa: SLF001 - a part of dibs
        return Frame(page, dict(key[1]), url, done if done in MESSAGES else "")

    def _document(self, request: Request, frame: Frame, content: str, status: int = 200) -> Response:
        html = self.site.document(frame, content, _variant(request))
        return HTMLResponse(html, status)

    def _failed(self, request: Request, frame: Frame, key: PageKey, error: DibsError) -> Response:
        """Show the reason for which a page cannot be read, and its latest reading.

        After an error of the storage, the page stays live.
        """
        if isinstance(error, Refused):
            return self._problem(request, error)
        content, reason = "", reason_of(error)
        if (latest := self.pages.latest(key)) is not None:
            model, seconds = latest
            alarms = self.pages.alarms()
            content = self.site.content(
                frame.page, model, _variant(request), alarms=alarms, params=frame.params
            )
            reason = f"{reason}. Below is what it said {text.duration(int(seconds) * 1000)} ago."
        return self._document(request, evolve(frame, down=reason), content, 503)

    def _problem(self, request: Request, error: DibsError) -> Response:
        status = 400 if isinstance(error, (Refused, BatchRefused)) else 503
        title = "This page cannot be shown" if request.method == "GET" else "This was not done"
        return self._other(request, "problem.html", status, title=title, problem=error_text(error))

    def not_found(self, request: Request, _: Exception) -> Response:
        """Answer to an address without a page."""
        return self._other(
            request, "problem.html", 404, title="Not found", problem="There is no page at this address."
        )

    def _forbidden(self, request: Request, error: ForbiddenError) -> Response:
        return self._other(request, "problem.html", 403, title="This was not done", problem=str(error))

    def _other(self, request: Request, template: str, status: int, **values: Any) -> Response:
        """Return a page that is no page of the registry; it is not live."""
        variant = _variant(request)
        content = self.site.render(template, variant, **values)
        page = Page(template.partition(".")[0], "dibs", (), None, self.pages.read)  # type: ignore[arg-type]
        url = self.pages.source.app._storage_handle.redacted_url  # noqa: SLF001 - a part of dibs
        return self._document(request, Frame(page, {}, url), content, status)


class _Stream(EventSourceResponse):
    """Server-sent events. `end` is called once, also if the response ends before its first event."""

    def __init__(self, events: AsyncIterator[Mapping[str, str]], end: Callable[[], None]) -> None:
        # The events have pings of their own.
        super().__init__(events, ping=3600)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


class _CachedFiles(StaticFiles):
    """Static files whose address has a digest of their content, so that a browser keeps them."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def _variant(request: Request) -> Variant:
    base = f"{request.scope.get('root_path', '').rstrip('/')}/"
    return Variant(base, access_of(request))


def error_text(error: DibsError) -> str:
    """Return the message of an error; for a BatchRefused, the messages of its items, joined by "; "."""
    if isinstance(error, BatchRefused):
        return "; ".join(str(each) for each in error.exceptions)
    return str(error)


def _summary(bulk: Bulk) -> str:
    return f"{bulk.done} {bulk.action.done}"


log = logging.getLogger("dibs.web")


@define(eq=False)
class Dashboard:
    """The ASGI application that `dibs_web` returns."""

    app: Dibs
    _pages: Pages = field(repr=False)
    _site: Site = field(repr=False)
    _asgi: ASGIApp = field(repr=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the start and the end of a server."""
        if scope["type"] == "lifespan":
            await self.prepare()
        elif not self._site.is_compiled:
            # Servers do not announce their start to mounted applications.
            await asyncio.to_thread(self._site.compile)
        await self._asgi(scope, receive, send)

    async def prepare(self) -> None:
        """Compile the templates in a thread and open the storage, so that the first page is fast.

        A server does this at its start if it serves the dashboard itself. Call it in the lifespan of the
        application in which the dashboard is mounted; else the first request does it. A storage that cannot
        be opened is logged, and each page tries to open it again.
        """
        try:
            await asyncio.gather(asyncio.to_thread(self._site.compile), self._pages.source.storage())
        except DibsError as error:
            log.warning("the storage cannot be opened yet: %s", error)


def _allow_function(allow: object) -> Allow:
    if allow is None:
        raise ConfigurationError(
            "allow is missing: pass a function of the request that returns 'write', 'read' or 'none', or "
            "allow='read' if each program that reaches the dashboard may see all jobs"
        )
    if isinstance(allow, str) and allow in get_args(Access):
        return lambda _: cast("Access", allow)
    if not callable(allow):
        raise ConfigurationError(f"allow is {allow!r:.60}; pass a function, or 'write', 'read' or 'none'")
    return cast("Allow", allow)


def dibs_web(
    app_or_url: Dibs | str,
    *,
    allow: Allow | Access | None = None,
    redact: Redact | None = None,
    warehouse: str | Path | None = None,
    allowed_hosts: Collection[str] = (),
) -> Dashboard:
    """Return the dashboard of an app, or of the storage at a URL, as an ASGI application.

    Mount it in Starlette or FastAPI: `api.mount("/jobs", dibs_web(app, allow=allow))`. The storage
    opens at the first request, or with `await dashboard.prepare()`. With an app it knows the tasks: it names
    the arguments, and builds forms from the signatures.

    - `allow(request)` returns the access of a request of Starlette: "write", "read" or "none". It may be
      async. One of these words instead of a function is for each request. It has no default, so that nobody
      publishes jobs by mistake.
    - `redact(queue, part, value)` returns the value that a page shows instead of a stored one. `part` is
      "data", "attributes", "result", "progress", "output", "step" or "error"; the value of an error is its
      text. If the hook raises an error, the page shows no value. Default: values are shown as they are.
    - `warehouse` is the place of the tables of `dibs spark history`, for the page History: a folder, or a URL
      such as s3://bucket/history. Default: none.
    - `allowed_hosts` are the names of hosts under which browsers reach the dashboard, in the form of Django's
      ALLOWED_HOSTS: "jobs.example.org", ".example.org", or "*" for any. IP addresses and localhost are always
      allowed. A request with another name gets the status 421.

    Raises ConfigurationError without `allow`, and for another object than an app or a URL.
    """
    if isinstance(app_or_url, str):
        app_or_url = Dibs(app_or_url)
    if not isinstance(app_or_url, Dibs):
        raise ConfigurationError(
            f"app_or_url is of type {type(app_or_url).__name__}; pass an app, or a URL such as file:./jobs"
        )
    if redact is not None and not callable(redact):
        raise ConfigurationError(f"redact is {redact!r:.60}; pass a function")
    if warehouse is not None and not isinstance(warehouse, (str, Path)):
        raise ConfigurationError(
            f"warehouse is {warehouse!r:.60}; pass a folder, or a URL such as s3://bucket/history"
        )
    if isinstance(allowed_hosts, str) or not all(isinstance(name, str) for name in allowed_hosts):
        raise ConfigurationError(
            f"allowed_hosts is {allowed_hosts!r:.60}; pass a list of names, such as ['jobs.example.org']"
        )
    history = History(
        warehouse,
        with_error_texts=redact is None,
        sizes=app_or_url.handlers.sizes(),
    )
    pages = Pages(Source(app_or_url, redact), history)
    site = Site()
    routes = Routes(pages, Live(pages), site)
    return Dashboard(
        app_or_url,
        pages,
        site,
        Guard(
            Starlette(routes=routes.all(), exception_handlers={404: routes.not_found}),
            _allow_function(allow),
            tuple(allowed_hosts),
        ),
    )
