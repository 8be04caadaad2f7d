"""Collectives inside compiled JAX programs on CPUs, which `hvdlite.keras` uses on Keras's JAX backend.

Outside of compiled programs, pass JAX arrays to `hvdlite.allreduce` and the other functions, which view them as NumPy arrays
without a copy. `send` and `recv` have gradients, and work outside of compiled programs only. `check_consistency` compares the
pytrees of all ranks.
"""

try:
    import jax as _jax  # noqa: F401 - only to say clearly that it is missing
except ImportError as error:
    raise ImportError(f"hvdlite.jax needs JAX, which cannot be imported ({error}): pip install jax") from error

from hvdlite.jax.consistency import check_consistency
from hvdlite.jax.ffi import require_cpu
from hvdlite.jax.ops import as_weight, call, grouped_allreduce, grouped_broadcast
from hvdlite.jax.point_to_point import recv, send

__all__ = ["as_weight", "call", "check_consistency", "grouped_allreduce", "grouped_broadcast", "recv", "require_cpu", "send"]
