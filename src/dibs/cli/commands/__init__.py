"""One module for each command, with a function `command`. dibs.cli.main imports the one that runs."""
