"""`python -m dibs` is `dibs`."""


def main() -> None:
    """Run the command line.

    Imported only now: each worker process imports anew the script that started it, and needs no verbs.
    """
    from dibs.cli.main import main as run  # noqa: PLC0415 - see above

    run()


if __name__ == "__main__":
    main()
