"""The memory mappings of this process."""

from pathlib import Path

__all__ = ["is_mapped", "mapping_at"]


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
    return mapping_at(address) is not None
