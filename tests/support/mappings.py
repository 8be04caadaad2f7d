"""The memory mappings of this process."""

import ctypes
import mmap
from pathlib import Path

__all__ = ["is_mapped", "mapping_at"]

# To read /proc/self/maps is to map memory for its text, perhaps at the address in question. mincore() needs no memory.
_LIBC = ctypes.CDLL(None)
_LIBC.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
_PAGE_STATE = ctypes.create_string_buffer(1)


def mapping_at(address: int) -> str | None:
    """The name of the mapping at an address; empty for private memory without a name; None if nothing is mapped there."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        bounds, *others = line.split(maxsplit=5)
        low, high = (int(bound, 16) for bound in bounds.split("-"))
        if low <= address < high:
            return others[4] if len(others) == 5 else ""
    return None


def is_mapped(address: int) -> bool:
    """Does this process have memory at the address?"""
    return _LIBC.mincore(address - address % mmap.PAGESIZE, 1, _PAGE_STATE) == 0
