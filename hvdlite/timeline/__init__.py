"""Merges the timeline files of all ranks (`hvdlite.start_timeline`), and reports how the job spent its time.

This package needs no framework and no native code, so the files can be read on another machine.
"""
