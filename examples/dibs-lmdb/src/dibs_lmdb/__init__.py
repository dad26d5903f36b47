"""A storage for dibs in LMDB, an ordered key-value store that many processes of one machine share."""

from dibs_lmdb.location import data_folder, open_url, remove_url, temporary_url

__all__ = ["data_folder", "open_url", "remove_url", "temporary_url"]
