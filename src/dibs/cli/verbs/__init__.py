"""One module for each verb, each with a function `command`; dibs.cli.main lists them, and imports one."""
