"""`python -m orderproof.flows.cli` is the command `orderproof`."""

from orderproof.flows.cli import main

main()
