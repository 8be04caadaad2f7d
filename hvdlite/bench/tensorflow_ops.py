"""`python -m hvdlite.bench tensorflow-ops`: measures the time of hvdlite's operations in a graph of TensorFlow, on one rank.

Each graph doubles many small tensors. The baseline only doubles them; the other graphs also allreduce them. On one rank an
allreduce waits for no other rank, so the added time is that of the operation itself.
"""

import argparse
import importlib.metadata
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hvdlite.bench.collectives import Sink
from hvdlite.bench.measure import Effort, Subject, measure, measurements
from hvdlite.bench.world import World

_EFFORT = Effort(sample_seconds=0.02, most_calls=50, block_seconds=0.2, most_rounds=100)


def run(world: World, options: argparse.Namespace, sink: Sink) -> None:
    """Measures, and passes the records of the graphs to `sink`, on all ranks. Collective.

    Args:
        world: the ranks.
        options: the options of the command ``tensorflow-ops``.
        sink: a function that gets the records.
    """
    import tensorflow as tf

    import hvdlite.tensorflow as hvd

    tf.config.threading.set_intra_op_parallelism_threads(world.cores)
    hvd.init()
    versions = {"baseline": f"TensorFlow {tf.__version__}", "hvdlite": importlib.metadata.version("hvdlite")}
    sink([{"record": "peer", "peer": peer, "absent": None, "version": version} for peer, version in versions.items()])
    tensors = [tf.random.stateless_uniform([options.elements], seed=(world.rank, place)) for place in range(options.tensors)]
    done = measure(world, [_subject(name, graph, tensors) for name, graph in _graphs().items()], _EFFORT, options.seconds)
    sink(measurements(world, "tensorflow_ops", done, tensors=options.tensors, elements=options.elements))


def _subject(name: str, graph: Callable[[Sequence[Any]], list[Any]], tensors: Sequence[Any]) -> Subject:
    import tensorflow as tf

    given = list(tensors)
    function = tf.function(graph, jit_compile=False).get_concrete_function(given)
    return Subject(name, lambda: function(given), len(given))


def _graphs() -> Mapping[str, Callable[[Sequence[Any]], list[Any]]]:
    """The graphs, as functions for TensorFlow to trace."""
    from hvdlite.tensorflow import collective_ops

    def doubled(tensors: Sequence[Any]) -> list[Any]:
        return [tensor * 2.0 for tensor in tensors]

    def one_by_one(tensors: Sequence[Any]) -> list[Any]:
        return [collective_ops.allreduce(tensor, name=f"bench.ops.{place}") for place, tensor in enumerate(doubled(tensors))]

    def grouped(tensors: Sequence[Any]) -> list[Any]:
        return collective_ops.grouped_allreduce(doubled(tensors), name="bench.ops.group")

    return {"baseline": doubled, "hvdlite": one_by_one, "hvdlite-grouped": grouped}
