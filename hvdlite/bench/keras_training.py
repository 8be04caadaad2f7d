"""`python -m hvdlite.bench training --framework keras`: measures a training step with Keras on TensorFlow, in two loops.

All *ways* to average gradients start from the same weights and use the same data. Before a way is timed, the gradient of its
first step is compared with the average that MPI computes of the ranks' own gradients.
"""

import argparse
import gc
import importlib.metadata
import itertools
import socket
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hvdlite.bench import report
from hvdlite.bench.collectives import Sink
from hvdlite.bench.models import MODELS, Model
from hvdlite.bench.training import NetworkTraining, measure_ways
from hvdlite.bench.world import World

LOOPS = ("fit", "tape")  # model.fit, and a tf.function with a tape

_BATCHES = 16  # the number of different batches; one call of `fit` uses all of them
_LEARNING_RATE = 1e-3

# For each way, the loops that it supports. `fit` of Keras 3 fails under MultiWorkerMirroredStrategy.
WAYS: Mapping[str, Sequence[str]] = {
    "none": LOOPS,
    "lockstep": LOOPS,
    "hvdlite": LOOPS,
    "mirrored": ("tape",),
}


def teams(ways: Sequence[str]) -> list[list[str]]:
    """The ways in groups. The ways of one group can share a process. MultiWorkerMirroredStrategy must be alone, because it
    changes TensorFlow for the whole process.
    """
    return [team for team in ([way for way in ways if way != "mirrored"], [way for way in ways if way == "mirrored"]) if team]


def run(world: World, options: argparse.Namespace, sink: Sink) -> None:
    """Measures, and passes the records of each group of comparable measurements to `sink`, on all ranks. Collective.

    Args:
        world: the ranks.
        options: the options of the command ``training``.
        sink: a function that gets the records.

    Raises:
        WrongSum: a way does not average the gradients. All ranks raise it.
    """
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(world.cores)
    ways = teams(options.peers)[0]
    sink([_peer(way, ways) for way in options.peers])
    strategy = _mirrored(world) if "mirrored" in ways else None
    groups = [(model, loop) for model in options.models for loop in options.loops if any(loop in WAYS[way] for way in ways)]
    for model, loop in groups:
        able = [way for way in ways if loop in WAYS[way]]
        data = _make_data(MODELS[model], world.rank)
        make = partial(_Fit if loop == "fit" else _Tape, world, model, data, strategy)
        sink(measure_ways(world, able, make, {"model": model, "loop": loop}, options.seconds / len(groups)))
        gc.collect()  # frees the networks before the next ones are made


def _peer(way: str, present: Sequence[str]) -> report.Record:
    absent = None if way in present else "it needs its own processes: start the benchmark without mpirun"
    package = {"hvdlite": "hvdlite", "mirrored": "tensorflow"}.get(way)
    version = _version_of_tensorflow() if package == "tensorflow" else importlib.metadata.version(package) if package else ""
    return {"record": "peer", "peer": way, "absent": absent, "version": "" if absent else version}


def _version_of_tensorflow() -> str:
    import tensorflow as tf

    return f"TensorFlow {tf.__version__}"


def _mirrored(world: World) -> Any:
    """TensorFlow's MultiWorkerMirroredStrategy, over gRPC between free ports. Collective."""
    import tensorflow as tf

    host = "127.0.0.1" if world.hosts == 1 else socket.gethostname()
    with socket.socket() as reserved:
        reserved.bind(("", 0))
        places = world.everyone(f"{host}:{reserved.getsockname()[1]}")
    cluster = tf.train.ClusterSpec({"worker": places})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="worker", task_id=world.rank, rpc_layer="grpc"
    )
    return tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=resolver)


_Data = tuple[NDArray[np.float32], NDArray[np.int64]]


def _make_data(model: Model, rank: int) -> _Data:
    """Inputs and labels that differ between ranks. Keras's inputs have the channels in the last dimension."""
    dice = np.random.default_rng(1000 + rank)
    *channels, size = model.input_shape
    shape = (*model.input_shape[1:], channels[0]) if len(channels) > 1 else (size,)
    rows = _BATCHES * model.batch
    return dice.standard_normal((rows, *shape), dtype=np.float32), dice.integers(0, model.classes, rows)


# --- the networks -----------------------------------------------------------------------------------------------------


def _network(name: str) -> Any:
    """The network of `MODELS` with this name, made with Keras."""
    import keras

    layers = keras.layers
    if name == "mlp25m":
        widths = list(pairwise((1024, 3072, 3072, 3072, 1000)))
        inner = [layers.Dense(outputs, activation="relu") for _, outputs in widths[:-1]]
        return keras.Sequential([keras.Input((1024,)), *inner, layers.Dense(1000)])
    if name == "convnet":
        found: list[Any] = [keras.Input((32, 32, 3))]
        for filters, strides in ((32, 1), (64, 2), (128, 2), (256, 2)):
            found += [layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)]
            found += [layers.BatchNormalization(), layers.ReLU()]
        return keras.Sequential([*found, layers.GlobalAveragePooling2D(), layers.Dense(10)])
    return keras.Sequential([keras.Input((32,)), *(layers.Dense(32, activation="relu") for _ in range(200))])


# --- the loops --------------------------------------------------------------------------------------------------------


class _KerasTraining(NetworkTraining):
    """One network of Keras that is trained in one way."""

    def __init__(self, world: World, model: str, data: _Data, strategy: Any, way: str) -> None:
        import keras

        self._strategy = strategy if way == "mirrored" else None
        self._world, self._way, self._batch, (self._inputs, self._labels) = world, way, MODELS[model].batch, data
        if way == "hvdlite":
            import hvdlite.tensorflow.keras as hvd

            hvd.init()
        with self._strategy.scope() if self._strategy is not None else nullcontext():
            keras.utils.set_random_seed(1)
            self._network = _network(model)
            self._optimizer = keras.optimizers.SGD(_LEARNING_RATE, momentum=0.9)
            self._make()

    @abstractmethod
    def _make(self) -> None: ...

    def first_gradient(self) -> NDArray[np.float32]:
        # The momentum is the gradient times the learning rate, negated.
        momenta = [np.asarray(momentum).ravel() for momentum in self._optimizer.momentums]
        found: NDArray[np.float32] = np.concatenate(momenta) / np.float32(-_LEARNING_RATE)
        return found


class _Fit(_KerasTraining):
    """Trains with ``model.fit``, on all batches in a call."""

    STEPS = _BATCHES

    def _make(self) -> None:
        import keras

        optimizer = self._optimizer
        if self._way == "hvdlite":
            import hvdlite.tensorflow.keras as hvd

            optimizer = hvd.DistributedOptimizer(optimizer)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self._network.compile(optimizer=optimizer, loss=loss, jit_compile=False)
        barrier = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: self._world.barrier())
        callbacks = [barrier] if self._way == "lockstep" else []
        self._options = {"batch_size": self._batch, "shuffle": False, "verbose": 0, "callbacks": callbacks}

    def first_step(self) -> None:
        self._network.fit(self._inputs[: self._batch], self._labels[: self._batch], **self._options)

    def steps(self) -> None:
        self._network.fit(self._inputs, self._labels, **self._options)


class _Tape(_KerasTraining):
    """Trains with a ``tf.function`` that has a tape. Each call of the function takes the next batch."""

    def _make(self) -> None:
        import tensorflow as tf

        self._optimizer.build(self._network.trainable_variables)
        batches = [slice(start, start + self._batch) for start in range(0, len(self._labels), self._batch)]
        turns = [(tf.constant(self._inputs[batch]), tf.constant(self._labels[batch])) for batch in batches]
        self._turns = itertools.cycle(turns)
        self._step = tf.function(self._on_all_ranks, jit_compile=False)

    def _on_all_ranks(self, inputs: Any, labels: Any) -> None:
        if self._strategy is None:
            self._train(inputs, labels)
        else:
            self._strategy.run(self._train, args=(inputs, labels))

    def _train(self, inputs: Any, labels: Any) -> None:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            scores = self._network(inputs, training=True)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
            if self._strategy is not None:  # the strategy adds the replicas' gradients
                loss /= self._strategy.num_replicas_in_sync
        if self._way == "hvdlite":
            import hvdlite.tensorflow as hvd

            tape = hvd.DistributedGradientTape(tape)
        variables = self._network.trainable_variables
        self._optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))

    def steps(self) -> None:
        self._step(*next(self._turns))
        if self._way == "lockstep":
            self._world.barrier()
