"""The benchmark: measures hvdlite and other libraries in one run, and compares their times with the speed of the machine.

A *peer* is what is measured: one library, or one way to use hvdlite (`hvdlite.bench.peers`).

    python -m hvdlite.bench collectives -n 2
    python -m hvdlite.bench training -n 2

docs/benchmarks.md explains the output. No other package of hvdlite imports this package.
"""
