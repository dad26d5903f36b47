"""The address in a storage URL: its check, its form for messages, and the path of a file: URL.

A user name or password with an unescaped `@`, `/`, `?` or `#` splits a URL at the wrong place. A part of the
password would then count as host, database or option, and appear in errors and logs.
"""

from __future__ import annotations

import os
import re
from typing import Final, NamedTuple

from dibs.errors import ConfigurationError, UnknownOption

#: Schemes whose URL has a path or a name behind the colon. Other URLs without "//" are not shown in messages.
LOCAL_SCHEMES: Final = ("file", "memory")
_ESCAPED: Final = "@ as %40, / as %2F, ? as %3F, # as %23, : as %3A and % as %25"
# The patterns are compiled at the first use, to keep `import dibs` fast.
_BAD_PERCENT: Final = r"%(?![0-9A-Fa-f]{2})"
_HOST: Final = r"(\[[0-9A-Fa-f:.%\w]*\]|[^\[\]:\s]*)(:([0-9]{0,5}))?"
_CONTROL: Final = r"[\x00-\x1f\x7f-\x9f\u2028\u2029]"
_OPTION_NAME: Final = r"\w+"
#: Matches the names of options whose value is a secret.
_SECRET_NAME: Final = "pass|secret|token|key"  # noqa: S105 - no password


class Address(NamedTuple):
    """The parts of a URL such as `redis://user:password@host:6379/0?prefix=jobs`, not decoded."""

    scheme: str
    #: User and password, as in `user:password`, or "".
    userinfo: str
    #: Hosts and ports, as in `a:1,b:2`.
    hosts: str
    #: Path with its slash, or "".
    path: str
    query: str


def parse_address(url: str) -> Address:
    """Return the parts of a URL with `//`.

    Raise ConfigurationError if special characters in it are not escaped. The message repeats no part of the
    URL except for its scheme, because any part may belong to the password.
    """
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        scheme = url.partition(":")[0]
        raise UnknownOption(f"{scheme}: needs two slashes, as in {scheme}://user@host")
    bare, _, query = rest.partition("?")
    authority, slash, path = bare.partition("/")
    userinfo, _, hosts = authority.rpartition("@")
    # Each "@" but the one before the host must be escaped, so that no misread password passes.
    misread = "@" in f"{userinfo}{path}{query}" or "#" in rest or any(char <= " " for char in rest)
    if misread or not _is_splittable(url) or re.search(_BAD_PERCENT, f"{userinfo}{hosts}"):
        raise ConfigurationError(
            f"the {scheme} URL cannot be read: in its user name, password and options, write {_ESCAPED}. "
            "urllib.parse.quote(password, safe='') does it"
        )
    if "[" in userinfo or "]" in userinfo or not all(map(_is_host, hosts.split(","))):
        raise ConfigurationError(
            f"the host or port in the {scheme} URL cannot be read: write {scheme}://user:password@host:port, "
            "with a port from 1 to 65535; in user name and password, write [ as %5B and ] as %5D"
        )
    return Address(scheme, userinfo, hosts, slash + path, query)


def _is_splittable(url: str) -> bool:
    """Return whether urllib splits a URL outside ASCII. Its error would quote user name and password."""
    if url.isascii():
        return True
    from urllib.parse import urlsplit  # noqa: PLC0415 - imports ipaddress and more, for few URLs

    try:
        url.encode()
        urlsplit(url)
    except ValueError:
        return False
    return True


def _is_host(text: str) -> bool:
    found = re.fullmatch(_HOST, text)
    return found is not None and (not found[3] or 0 < int(found[3]) < 65536)


def redact_url(url: str) -> str:
    """Return a URL for messages, without user, password and options: "redis://u:secret@h/0" is "redis://h/0".

    A URL that `parse_address` refuses is shown as its scheme only.
    """
    scheme, colon, rest = url.partition(":")
    if not rest.startswith("//"):
        if not colon:
            return "..."
        path = rest.partition("?")[0]
        # Without "//", an "@" shows a URL of a server with a mistake.
        return f"{scheme}:..." if scheme.lower() not in LOCAL_SCHEMES and "@" in rest else f"{scheme}:{path}"
    if scheme.lower() in LOCAL_SCHEMES:
        return url.partition("?")[0]
    try:
        address = parse_address(url)
    except ConfigurationError:
        return f"{scheme}://..."
    return f"{scheme}://{address.hosts}{address.path}"


def show_option(name: str, url: str = "") -> str:
    """Return the name of an unknown option for a message, in quotes.

    A password in the query of `url` may contain an unescaped `&`, and its rest looks like an option. Then
    return a text without the name.
    """
    if not re.fullmatch(_OPTION_NAME, name) or re.search(_SECRET_NAME, url.partition("?")[2]):
        return "in the URL (not shown, because it may be a part of a password: write & as %26)"
    return repr(name)


def check_url(url: str) -> None:
    """Raise ConfigurationError for a URL with a line break or another control character.

    A secret or a file often ends with a line break. It is not removed: the rest of a URL means what it says,
    and a path or a password may end with any other character. The message repeats no part of the URL.
    """
    if found := re.search(_CONTROL, url):
        raise ConfigurationError(
            f"the storage URL has the control character {found[0]!r} at position {found.start() + 1} of "
            f"{len(url)}: remove it; for a line break at the end of a file, $(cat FILE) does so"
        )


def absolute_url(url: str, folder: str) -> str:
    """Return a file: URL with its path below `folder`, unless that path is absolute; any other URL as it is.

    Raise ConfigurationError if `folder` has a character that a URL cannot hold.
    """
    scheme, colon, rest = url.partition(":")
    path, mark, query = rest.partition("?")
    if scheme.lower() != "file" or not path or path.startswith(("/", "~")):
        return url
    if "?" in folder:
        raise ConfigurationError(
            f"the path {path} is relative to the folder {folder}, whose name has a question mark. That "
            "begins the options of a URL: write an absolute path, or rename the folder"
        )
    return f"{scheme}{colon}{folder.rstrip('/')}/{path.removeprefix('./')}{mark}{query}"


def parse_file_path(url: str) -> str:
    """Return the path in a file: URL without its query, with `~` replaced by the home of the user.

    Raise UnknownOption for a URL with a host, without a path, or with a user that the system does not know.
    """
    path = url.partition(":")[2].partition("?")[0]
    if path.startswith("//"):
        host, slash, below = path[2:].partition("/")
        if host not in ("", "localhost") or not slash:
            raise UnknownOption(
                "a file: URL with two slashes names a host, and dibs opens only local files: write "
                "file:./jobs for a path below the working directory, or file:/var/jobs for an absolute path"
            )
        path = "/" + below.lstrip("/")
    if not path.strip("/"):
        raise UnknownOption("the URL file: has no path; write file:./jobs")
    expanded = os.path.expanduser(path) if path.startswith("~") else path  # noqa: PTH111 - a path as text
    if expanded.startswith("~"):
        raise UnknownOption(
            "the file: URL begins with ~ and a user that this machine does not know; write file:~/jobs for "
            "your home, or file:./~jobs for a folder of that name"
        )
    return expanded
