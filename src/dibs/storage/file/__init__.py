"""Jobs in a directory: commits that appear by rename, a checkpoint, and any number of processes."""

from dibs.storage.file.storage import FileStorage, open_url
from dibs.storage.file.temporary import place_url, remove_url

__all__ = ["FileStorage", "open_url", "place_url", "remove_url"]
