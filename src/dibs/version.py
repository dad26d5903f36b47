"""The version of dibs. pyproject.toml has the same number."""

VERSION = "0.1.0"
