"""Merges the timeline files of all ranks (`hvdlite.start_timeline`), and reports how the job spent its time.

It needs no framework and no native code, so it can read the files on another machine.
"""
