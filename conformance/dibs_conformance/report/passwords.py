"""Removes the password and the options of the certified URL from all texts of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

import msgspec

from dibs.storage.addresses import redact_url
from dibs_conformance.report.report import CertificationReport

HIDDEN: Final = "***"
#: Options of a URL whose values are secrets.
SECRET_OPTIONS: Final = ("password", "passwd", "secret", "token", "sslpassword")


def without_passwords(report: CertificationReport, target: object) -> CertificationReport:
    """Return the report with HIDDEN for each secret of the URL. A function has none that the kit knows."""
    if not isinstance(target, str):
        return report
    secrets = sorted({secret for secret in secrets_of(target) if secret}, key=len, reverse=True)
    texts = {target: redact_url(target), **dict.fromkeys(secrets, HIDDEN)}
    return msgspec.convert(replace_texts(msgspec.to_builtins(report), texts), CertificationReport)


def secrets_of(url: str) -> Iterator[str]:
    """Yield the password of a URL and the values of secret options, as written and decoded."""
    _, _, rest = url.partition("://")
    authority = rest.partition("?")[0].rpartition("/")[0] or rest.partition("?")[0]
    account, at, _ = authority.rpartition("@")
    password = account.partition(":")[2] if at else ""
    options = [value for name, value in parse_qsl(rest.partition("?")[2]) if is_secret(name)]
    for secret in (password, *options):
        yield from (secret, unquote(secret))


def is_secret(option: str) -> bool:
    return any(word in option.lower() for word in SECRET_OPTIONS)


def replace_texts(value: Any, texts: dict[str, str]) -> Any:
    """Return the value with each text replaced, in all strings inside it."""
    if isinstance(value, str):
        for text, replacement in texts.items():
            value = value.replace(text, replacement)
        return value
    if isinstance(value, dict):
        return {key: replace_texts(inside, texts) for key, inside in value.items()}
    if isinstance(value, list | tuple):
        return [replace_texts(inside, texts) for inside in value]
    return value
