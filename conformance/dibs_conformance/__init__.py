"""The conformance kit: `certify` tests whether a storage keeps the contract of dibs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dibs_conformance.certification import certify as certify
    from dibs_conformance.report import CertificationReport as CertificationReport
    from dibs_conformance.report import LawFailure as LawFailure
    from dibs_conformance.report import LawReport as LawReport

__all__ = ["CertificationReport", "LawFailure", "LawReport", "certify"]

_MODULES: Final = {
    "certify": "certification",
    "CertificationReport": "report",
    "LawFailure": "report",
    "LawReport": "report",
}


def __getattr__(name: str) -> Any:
    """Import a public name on its first use.

    pytest imports this package for its plugin, also where Hypothesis is not installed.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
