"""`python -m dibs_conformance.simulate`: the deterministic simulation of the whole system."""

from dibs_conformance.simulation.command import main, run_as_child

if __name__ == "__main__":
    run_as_child()
    main()
