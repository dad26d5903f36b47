"""The oracle: a naive, slow reading of the contract, written apart from every storage.

It keeps the list of updates and replays it, scans lists, and takes `now` as an argument. It imports what
jobs are made of and nothing of how the engine moves them.
"""

from dibs_conformance.oracle.ids import IdRecord as IdRecord
from dibs_conformance.oracle.ids import OneOf as OneOf
from dibs_conformance.oracle.storage import Oracle as Oracle
