"""A storage and the oracle in lockstep: each verb is called on both, and the results must be equal.

A verb is an operation of the contract, such as claim or settle. The classes of this package build on each
other: LockstepCore, RunVerbs, LeaseVerbs, IdVerbs, Lockstep.
"""

from dibs_conformance.sequential.lockstep.core import LawChecker as LawChecker
from dibs_conformance.sequential.lockstep.log import Lockstep as Lockstep
from dibs_conformance.sequential.lockstep.log import Reader as Reader
from dibs_conformance.sequential.lockstep.moving import copy_and_compare as copy_and_compare
from dibs_conformance.sequential.lockstep.moving import export_in_parts as export_in_parts

__all__ = ["LawChecker", "Lockstep", "Reader", "export_in_parts", "move"]
