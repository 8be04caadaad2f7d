"""All mutants, by the room of the house that they are in."""

from mutants.mutant import Mutant
from mutants.rows import (
    agreement,
    bindings,
    collectives,
    core,
    device,
    engine,
    jax,
    keras,
    kernels,
    launcher,
    tensorflow,
    timeline,
    torch,
    transport,
)

ROOMS: dict[str, tuple[Mutant, ...]] = {
    "agreement": agreement.ROWS,
    "engine": engine.ROWS,
    "collectives": collectives.ROWS,
    "kernels": kernels.ROWS,
    "transport": transport.ROWS,
    "device": device.ROWS,
    "bindings": bindings.ROWS,
    "timeline": timeline.ROWS,
    "torch": torch.ROWS,
    "tensorflow": tensorflow.ROWS,
    "keras": keras.ROWS,
    "jax": jax.ROWS,
    "launcher": launcher.ROWS,
    "core": core.ROWS,
}
