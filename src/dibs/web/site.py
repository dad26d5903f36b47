"""The HTML of pages: the templates, their filters, and the links between pages."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, Final
from urllib.parse import quote, urlencode

from attrs import frozen
from jinja2 import Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from dibs.web import text
from dibs.web.pages import Page
from dibs.web.safety import Access
from dibs.web.selected import ACTIONS, OFFERED

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
        iso=text.iso,
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

    def content(self, page: Page, model: Any, variant: Variant, **more: Any) -> str:
        """Return the content of a page."""
        template = self._templates.get_template(f"{page.name}.html")
        return template.render(page=page, model=model, variant=variant, **more)

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
