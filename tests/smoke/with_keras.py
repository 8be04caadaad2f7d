"""Keras: `fit` with DistributedOptimizer against one process on the whole batch. Argument: Keras 3's backend, or tf_keras."""

import os
import sys

os.environ["KERAS_BACKEND"] = sys.argv[1].replace("tf_keras", "tensorflow")
os.environ["TF_USE_LEGACY_KERAS"] = str(int(sys.argv[1] == "tf_keras"))

import numpy as np
from checks import FEATURES, ROWS, assert_close, assert_same_bits, mine, refused, samples

import hvdlite.keras as hvd
from hvdlite.keras.library import keras


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(learning_rate=0.05)


hvd.init()
rank, size = hvd.rank(), hvd.size()
inputs, targets = samples()
shard = {"x": mine(inputs), "y": mine(targets), "batch_size": ROWS // size, "shuffle": False, "verbose": 0}

keras.utils.set_random_seed(rank)
layers = [keras.Input((FEATURES,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(1)]
model = keras.Sequential(layers)
model.compile(optimizer=hvd.DistributedOptimizer(sgd()), loss="mse")
model.fit(**shard, epochs=2, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)])
start = model.get_weights()
assert_same_bits(start, "weights after the broadcast")

history = model.fit(**shard, epochs=5, callbacks=[hvd.callbacks.MetricAverageCallback()])
trained = model.get_weights()
assert_same_bits(trained, "weights after fit")
assert_same_bits([np.asarray(history.history["loss"])], "averaged metrics")

model.set_weights(start)
model.compile(optimizer=sgd(), loss="mse")
model.fit(inputs, targets, batch_size=ROWS, shuffle=False, verbose=0, epochs=5)
assert_close(trained, model.get_weights(), "weights of one process")
assert any(np.abs(one - other).max() > 1e-3 for one, other in zip(trained, start, strict=True)), "nothing was learnt"

with refused(Exception, "shape differs", "rank 1"):  # the class is the backend's
    hvd.allreduce(np.ones(4 + rank, np.float32), name="other")
