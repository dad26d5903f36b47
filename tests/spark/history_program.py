"""A program for spark-submit: the command `dibs spark history` with the arguments of the program."""

from __future__ import annotations

import sys

from dibs.cli.main import main

if __name__ == "__main__":
    sys.argv[1:1] = ["spark", "history"]
    main()
