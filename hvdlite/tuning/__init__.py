"""Finding the knobs that suit a machine: the search, what may be searched, and the file in which the result is kept.

Pure: nothing here measures or knows MPI. `hvdlite.bench.tune` measures, `hvdlite.startup` reads the file.
"""
