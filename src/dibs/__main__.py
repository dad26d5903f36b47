"""`python -m dibs` is `dibs`."""

from dibs.cli.main import main

if __name__ == "__main__":
    main()
