"""Tests of crashed clients and failing disks (level L3).

A call in flight during the crash must take effect completely or not at all.
"""
