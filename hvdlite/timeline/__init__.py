"""Handles the files of `hvdlite.start_timeline`: merges those of all ranks, and reports where the time went.

No framework and nothing native is needed: the files can be looked at on another machine.
"""
