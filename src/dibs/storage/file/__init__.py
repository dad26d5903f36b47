"""Jobs in a directory: commits that appear by rename, a checkpoint, and any number of processes."""

from dibs.storage.file.storage import FileStorage, open_url

__all__ = ["FileStorage", "open_url"]
