"""The storage for `file:` URLs, in a directory that the processes of one machine share.

Each change of jobs adds a commit file. Now and then a checkpoint, a file with all jobs, replaces the commit
files before it.
"""

from dibs.storage.file.storage import FileStorage, open_url
from dibs.storage.file.temporary import data_folder, remove_url, temporary_url

__all__ = ["FileStorage", "data_folder", "open_url", "remove_url", "temporary_url"]
