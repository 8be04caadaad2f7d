"""The benchmark: measures hvdlite and every installed peer in one run, and compares them with the speed of the machine.

    python -m hvdlite.bench collectives -n 2
    python -m hvdlite.bench training -n 2

docs/benchmarks.md explains the output. No other package of hvdlite imports this one.
"""
