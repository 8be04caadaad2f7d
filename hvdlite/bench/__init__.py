"""The benchmark: hvdlite and every installed peer in one run, beside what the machine can do.

    python -m hvdlite.bench collectives -n 2
    python -m hvdlite.bench training -n 2

docs/benchmarks.md says how to read what comes out. Nothing else in the package uses this.
"""
