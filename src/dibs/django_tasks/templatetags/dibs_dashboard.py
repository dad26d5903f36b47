"""The tag of the link that the index of Django's admin has to the dashboard."""

from __future__ import annotations

from django.conf import settings
from django.template import Library

register = Library()


@register.simple_tag  # type: ignore[untyped-decorator]  # Django has no types
def dibs_dashboard_url() -> str:
    """Return settings.DIBS_DASHBOARD_URL, or "" for a project without a dashboard."""
    return str(getattr(settings, "DIBS_DASHBOARD_URL", ""))
