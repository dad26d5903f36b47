"""Support for tests of an application: jobs in memory, a manual clock, and runs at the test's request."""

from dibs.testing.enqueued import assert_enqueued, refute_enqueued
from dibs.testing.rehearsal import BlockingRehearsal, Rehearsal, using

__all__ = ["BlockingRehearsal", "Rehearsal", "assert_enqueued", "refute_enqueued", "using"]
