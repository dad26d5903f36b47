"""The dashboard: `dibs_web` returns an ASGI application, and `dibs web` serves it. It needs `dibs[web]`."""

try:
    import jinja2 as _jinja2  # noqa: F401
    import sse_starlette as _sse_starlette  # noqa: F401
    import starlette as _starlette  # noqa: F401
except ImportError as _error:
    raise ImportError(
        'dibs.web needs Starlette, sse-starlette and Jinja2: pip install "dibs[web]"'
    ) from _error

from dibs.web.application import Dashboard, dibs_web
from dibs.web.reading.source import Part, Redact
from dibs.web.safety import Access, Allow

__all__ = ["Access", "Allow", "Dashboard", "Part", "Redact", "dibs_web"]
