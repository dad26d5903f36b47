"""Tests of crashed clients and failing disks (level L3): each call in flight takes effect completely or not
at all.
"""
