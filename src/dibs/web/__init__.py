"""The dashboard: `dibs_web` returns an ASGI application, and `dibs web` serves it. It needs `dibs[web]`.

The readings of the pages, in dibs.web.reading, need no further package: `dibs top` uses them. So the names
below are imported at their first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dibs.web.application import Dashboard, dibs_web
    from dibs.web.reading.source import Part, Redact
    from dibs.web.safety import Access, Allow

__all__ = ["Access", "Allow", "Dashboard", "Part", "Redact", "dibs_web"]
_MODULES = {"Access": "safety", "Allow": "safety", "Part": "reading.source", "Redact": "reading.source"}


def __getattr__(name: str) -> Any:
    """Return a public name. Raise ImportError that says what to install if a package is missing."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - only the first use of a name needs it

    try:
        import jinja2  # noqa: F401, PLC0415 - each page needs it
        import sse_starlette  # noqa: F401, PLC0415 - the same
        import starlette  # noqa: F401, PLC0415 - the same
    except ImportError as error:
        raise ImportError(
            'dibs.web needs Starlette, sse-starlette and Jinja2: pip install "dibs[web]"'
        ) from error
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'application')}"), name)
