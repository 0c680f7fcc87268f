"""`python -m orderproof.cli` is the command `orderproof`."""

from orderproof.cli.main import main

main()
