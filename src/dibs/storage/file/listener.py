"""Notifications of commits by other processes, through watchdog (inotify on Linux).

A lost notification delays a waiter by one poll interval and has no other effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver

from dibs.model.error_text import summarize_exception
from dibs.storage.file.directory import COMMITS, Directory
from dibs.storage.monkey_patches import gevent_has_patched

log: Final = logging.getLogger("dibs.storage.file")


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for watchdog's harmless message about a stopped observer, so that the filter drops it."""
    return "called when the thread is inactive" not in record.getMessage()


# watchdog logs an ERROR if its thread reads an event while the observer stops. Without the filter that
# message would be the last line of many commands.
logging.getLogger("watchdog.observers.inotify").addFilter(_is_relevant)


class CommitWatch(FileSystemEventHandler):
    """A watch of the `commits` folder. It calls `on_commit` with the number of each new commit.

    The call comes from watchdog's thread.
    """

    def __init__(self, directory: Directory, on_commit: Callable[[int], None]) -> None:
        self._directory = directory
        self._on_commit = on_commit
        self._observer: BaseObserver | None = None
        self._refusal: OSError | None = None
        # Here and not in start(): gevent may patch threads in between, and the thread of the storage then
        # prints an exception at the exit of the program. Each call may open an inotify instance.
        try:
            self._observer = Observer()
        except OSError as error:
            self._refusal = error

    def start(self) -> bool:
        """Start watching. Return False if the system refuses; inotify limits the watches of each user.

        Return False under gevent, too: the queue of watchdog fails on gevent's Queue.
        """
        if gevent_has_patched():
            return False
        if self._observer is not None:
            try:
                self._observer.schedule(self, self._directory.path_of(COMMITS))
                self._observer.start()
            except OSError as error:
                self._refusal = error
        if self._refusal is None:
            return True
        log.warning(
            "cannot watch %s for changes (%s): waits poll instead",
            self._directory.path,
            summarize_exception(self._refusal),
        )
        return False

    def stop(self) -> None:
        if self._observer is not None and self._observer.is_alive():
            self._observer.stop()
            self._observer.join()

    def on_any_event(self, event: FileSystemEvent) -> None:
        """Report a commit file that was renamed into the folder.

        watchdog calls such a rename `moved`, or `created` if it does not watch the folder that the file came
        from.
        """
        if event.event_type not in ("created", "moved"):
            return
        name = str(event.dest_path or event.src_path).rpartition("/")[2]
        try:
            self._on_commit(int(name, 16))
        except ValueError:
            log.debug("not a commit: %r", name)
