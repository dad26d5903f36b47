"""`python -m dibs`: the same as the command `dibs`."""


def main() -> None:
    """Run the command line.

    The import is inside the function, because each worker process that is spawned imports this script and
    needs no commands.
    """
    from dibs.cli.main import main as run_cli  # noqa: PLC0415 - see the docstring

    run_cli()


if __name__ == "__main__":
    main()
