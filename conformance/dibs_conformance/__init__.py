"""The conformance kit: `certify` tests whether a storage keeps the contract of dibs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dibs_conformance.certification import certify as certify
    from dibs_conformance.report import Failure as Failure
    from dibs_conformance.report import LawReport as LawReport
    from dibs_conformance.report import Report as Report

__all__ = ["Failure", "LawReport", "Report", "certify"]

_MODULES: Final = {"certify": "certification", "Failure": "report", "LawReport": "report", "Report": "report"}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use.

    pytest imports this package for its plugin, also where Hypothesis is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
