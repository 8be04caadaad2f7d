"""Digits with tf.keras and Horovod, in the form of Horovod's MNIST example: compile and fit."""

import os
import sys

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from sklearn.datasets import load_digits

# Horovod: initialize Horovod.
hvd.init()
tf.keras.utils.set_random_seed(1 + hvd.rank())  # what differs here, the broadcast makes the same

# Horovod: pin GPU to be used to process local rank (one GPU per process)
gpus = tf.config.experimental.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], "GPU")

digits = load_digits()
dataset = tf.data.Dataset.from_tensor_slices(
    (tf.cast(digits.images[..., tf.newaxis] / 16.0, tf.float32), tf.cast(digits.target, tf.int64))
)
dataset = dataset.repeat().shuffle(2000).batch(32)

model = tf.keras.Sequential(
    [
        tf.keras.layers.Conv2D(16, [3, 3], activation="relu"),
        tf.keras.layers.MaxPooling2D(pool_size=(2, 2)),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

# Horovod: adjust learning rate based on number of GPUs.
scaled_lr = 0.001 * hvd.size()
opt = tf.optimizers.Adam(scaled_lr)

# Horovod: add Horovod DistributedOptimizer.
opt = hvd.DistributedOptimizer(opt, backward_passes_per_step=1, average_aggregated_gradients=True)

model.compile(loss=tf.losses.SparseCategoricalCrossentropy(), optimizer=opt, metrics=["accuracy"])

callbacks = [
    # Horovod: broadcast initial variable states from rank 0 to all other processes.
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    # Horovod: average metrics among workers at the end of every epoch. It must be in the list before
    # ReduceLROnPlateau, TensorBoard or other metrics-based callbacks.
    hvd.callbacks.MetricAverageCallback(),
    # Horovod: using `lr = 1.0 * hvd.size()` from the very beginning leads to worse final accuracy.
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=scaled_lr, warmup_epochs=3, verbose=1),
]

# Horovod: save checkpoints only on worker 0 to prevent other workers from corrupting them.
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint(os.path.join(sys.argv[1], "checkpoint-{epoch}.keras")))

# Horovod: write logs on worker 0.
verbose = 2 if hvd.rank() == 0 else 0

# Train the model. Horovod: adjust number of steps based on number of GPUs.
history = model.fit(dataset, steps_per_epoch=80 // hvd.size(), callbacks=callbacks, epochs=5, verbose=verbose)

# The metrics are those of all ranks.
seen = hvd.allgather(tf.constant([history.history["accuracy"]]), name="seen").numpy()
assert (seen[0] == seen[1]).all(), seen
