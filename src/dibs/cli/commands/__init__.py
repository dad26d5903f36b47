"""The commands: each module has a function `command`. `dibs.cli.main` imports only the command that runs."""
