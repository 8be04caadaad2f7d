"""`python -m hvdlite.bench tensorflow-ops`: what hvdlite's operations cost in a graph of TensorFlow, on one rank.

Each graph doubles many small tensors. The baseline does only that; the others hand each of them to an allreduce, which has
nothing to wait for with one rank, so what is added is the price of the operation itself.
"""

import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hvdlite.bench import report
from hvdlite.bench.measure import Effort, Subject, measure
from hvdlite.bench.world import World

__all__ = ["OpsPlan", "run"]

_EFFORT = Effort(sample_seconds=0.02, most_calls=50, block_seconds=0.2, most_rounds=100)


@dataclass(frozen=True)
class OpsPlan:
    """What is measured.

    Attributes:
        tensors: in a graph.
        elements: float32 in each tensor.
        seconds: the approximate time for all measurements.
    """

    tensors: int = 160
    elements: int = 1000
    seconds: float = 20.0


def run(world: World, plan: OpsPlan, sink: Callable[[Sequence[report.Record]], None]) -> None:
    """Measures, and gives what was measured to `sink`. Collective."""
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(world.cores)
    hvd.init()
    versions = {"baseline": f"TensorFlow {tf.__version__}", "hvdlite": importlib.metadata.version("hvdlite")}
    sink([{"record": "peer", "peer": peer, "absent": None, "version": version} for peer, version in versions.items()])
    tensors = [tf.random.stateless_uniform([plan.elements], seed=(world.rank, place)) for place in range(plan.tensors)]
    done = measure(world, [_subject(name, graph, tensors) for name, graph in _graphs().items()], _EFFORT, plan.seconds)
    more = {"tensors": plan.tensors, "elements": plan.elements, "ranks": world.size, "bind": world.bind}
    for peer, at in done.items():
        rounds = [[value / plan.tensors for value in values] for values in at.rounds]
        sink([report.measurement("tensorflow_ops", peer, rounds, at.calls, **more)])


def _subject(name: str, graph: Callable[[Sequence[Any]], list[Any]], tensors: Sequence[Any]) -> Subject:
    import tensorflow as tf

    given = list(tensors)
    function = tf.function(graph, jit_compile=False).get_concrete_function(given)
    return Subject(name, [], lambda: function(given))


def _graphs() -> Mapping[str, Callable[[Sequence[Any]], list[Any]]]:
    """What is done to the tensors, as functions to be traced."""
    from hvdlite.tensorflow import collective_ops

    def doubled(tensors: Sequence[Any]) -> list[Any]:
        return [tensor * 2.0 for tensor in tensors]

    def one_by_one(tensors: Sequence[Any]) -> list[Any]:
        return [collective_ops.allreduce(tensor, name=f"bench.ops.{place}") for place, tensor in enumerate(doubled(tensors))]

    def grouped(tensors: Sequence[Any]) -> list[Any]:
        return collective_ops.grouped_allreduce(doubled(tensors), name="bench.ops.group")

    return {"baseline": doubled, "hvdlite": one_by_one, "hvdlite-grouped": grouped}
