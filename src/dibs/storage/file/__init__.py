"""The storage for `file:` URLs: commit files and a checkpoint in a directory that processes share."""

from dibs.storage.file.storage import FileStorage, open_url
from dibs.storage.file.temporary import remove_url, temporary_url

__all__ = ["FileStorage", "open_url", "remove_url", "temporary_url"]
