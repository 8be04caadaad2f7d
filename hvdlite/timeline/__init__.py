"""Merges the files of `hvdlite.start_timeline` of all ranks, and reports how the job spent its time.

It needs no framework and no native code, so the files can be read on another machine.
"""
