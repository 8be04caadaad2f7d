"""What to do with the files of `hvdlite.start_timeline`: merge those of all ranks, and say where the time went.

No framework and nothing native is needed: the files can be looked at on another machine.
"""
