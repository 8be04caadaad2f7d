"""Collectives inside compiled functions where hvdlite is imported before torch's compiler, and has wrapped no optimizer."""

from test_compile_collectives import test_collectives_of_hvdlite, test_ddp_and_functional_collectives

__all__ = ["test_collectives_of_hvdlite", "test_ddp_and_functional_collectives"]

RANKS = (2,)
FRESH = True
SLOW = ("test_collectives_of_hvdlite", "test_ddp_and_functional_collectives")
