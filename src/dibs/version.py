"""The version, in the one place where it is written down."""

VERSION = "0.1.0"
