"""The journals of a soak: files with one JSON object per line, one file per process and kind.

Each line is written with one system call, so a killed process leaves whole lines.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from attrs import define, field

FOLDER_VARIABLE: Final = "DIBS_SOAK_FOLDER"


def soak_folder() -> Path:
    """Return the folder of the running soak, which all its programs share."""
    return Path(os.environ[FOLDER_VARIABLE])


@define
class Journal:
    """The journal of this process, a file with one action per line. Its name begins with `kind`."""

    kind: str
    _fd: int = field(default=-1, init=False)
    _pid: int = field(default=0, init=False)

    def write(self, **fields: Any) -> None:
        """Append one line. After a fork, the child process opens another file."""
        if self._pid != os.getpid():
            # The process id is set last, as another thread may write meanwhile.
            self._fd, self._pid = self._open(), os.getpid()
        os.write(self._fd, msgspec.json.encode(fields) + b"\n")

    def _open(self) -> int:
        path = soak_folder() / f"{self.kind}-{os.getpid()}-{os.urandom(4).hex()}.jsonl"
        return os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)


def read_journals(folder: Path, kind: str) -> Iterator[dict[str, Any]]:
    """Yield the lines of all journals of one kind, file by file."""
    for path in sorted(folder.glob(f"{kind}-*.jsonl")):
        for line in path.read_bytes().splitlines():
            yield msgspec.json.decode(line)
