"""Hints that another process has committed, by watchdog. Lost hints cost a poll, nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

from dibs.storage.file.directory import Directory

log: Final = logging.getLogger("dibs.storage.file")


def _is_news(record: logging.LogRecord) -> bool:
    """Pass over a complaint of watchdog's: its thread met the stop of its observer, which harms nobody."""
    return "called when the thread is inactive" not in record.getMessage()


# It is logged as an error, and would be the last line of many a command.
logging.getLogger("watchdog.observers.inotify").addFilter(_is_news)


class CommitWatch(FileSystemEventHandler):
    """Calls `seen` with the number of each commit that appears, on a thread of its own."""

    def __init__(self, directory: Directory, seen: Callable[[int], None]) -> None:
        self._directory = directory
        self._seen = seen
        self._observer = Observer()

    def start(self) -> bool:
        """Begin to watch; tell whether the system allows it (inotify has a limit of watchers per user)."""
        try:
            self._observer.schedule(self, str(self._directory.commits))
            self._observer.start()
        except OSError as error:
            log.warning("no wake-ups for %s, polling instead: %s", self._directory.root, error)
            return False
        return True

    def stop(self) -> None:
        """Stop watching."""
        if self._observer.is_alive():
            self._observer.stop()
            self._observer.join()

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Take a rename into the folder: moved, or created where it came from a folder not watched."""
        if event.event_type not in ("created", "moved"):
            return
        name = str(event.dest_path or event.src_path).rpartition("/")[2]
        try:
            self._seen(int(name, 16))
        except ValueError:
            log.debug("not a commit: %r", name)
