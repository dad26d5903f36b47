"""Standard output and error of a worker: output that cannot be written fails no run."""

from __future__ import annotations

import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, Final

#: The streams that were replaced. If nothing referred to them, they could close the file descriptor.
_replaced: Final[list[io.TextIOWrapper]] = []


class LossyFile(io.FileIO):
    """A file whose writes never fail. It drops what cannot be written.

    The reader of a pipe may end, as in `dibs worker | head`, and the disk behind a log may be full.
    """

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.EIO):
                self._discard()
        return memoryview(data).nbytes

    def _discard(self) -> None:
        """Replace the file by /dev/null, so that programs which handlers start can write, too."""
        with suppress(OSError), open(os.devnull, "wb") as null:  # noqa: PTH123 - a device, for its descriptor
            os.dup2(null.fileno(), self.fileno())


def accept_lost_output() -> None:
    """Make writes to sys.stdout and sys.stderr never fail, unless the program has replaced them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and stream is getattr(sys, f"__{name}__"):
            new = _make_lossy(stream)
            setattr(sys, name, new)
            setattr(sys, f"__{name}__", new)
            _replaced.append(stream)


def _make_lossy(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    with suppress(OSError):
        stream.flush()
    file = LossyFile(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        # With PYTHONUNBUFFERED the text goes to the file itself.
        file if isinstance(stream.buffer, io.RawIOBase) else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
