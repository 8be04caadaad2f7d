"""Trains a small convolutional network with Keras's compile and fit, on as many processes as mpirun starts.

    python keras_digits.py                              one process
    mpirun -n 2 python keras_digits.py                  two processes: the same script, and each reads half of the images
    mpirun -n 2 python keras_digits.py --checkpoint digits --logs logs
    mpirun -n 2 python keras_digits.py --checkpoint digits --resume --epochs 20
    KERAS_BACKEND=torch mpirun -n 2 python keras_digits.py

You should see one line for each epoch, with the loss and the accuracies over all ranks. The last lines have a test accuracy
above 97 %, and say that all ranks have the same weights, bit by bit. On a terminal Keras shows its own bar.

Every process ("rank") runs this whole file. It works on each backend of Keras. Comments with HVD mark the seven places that
hvdlite adds to an ordinary training script. The program needs Keras and scikit-learn (which contains the 1797 images of
8 x 8 pixels), and for --logs also TensorFlow and TensorBoard.
"""

import math
import os
import sys
import time
from pathlib import Path

import common
import keras
import numpy as np

import hvdlite.keras as hvd
from hvdlite import allgather_object


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    return common.parse_digits(common.make_parser(__doc__), argv, "FOLDER", warmup=int, logs=True)


def load_images():
    """This rank's part of the training images and of the test images, with labels. An image has the shape 8 x 8 x 1."""
    # HVD 2: with n ranks each takes every n-th image. All take the same number, because each step needs a batch of every rank.
    return [
        tuple(
            part[: len(part) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()] for part in (images[..., np.newaxis], labels)
        )
        for images, labels in common.digits()
    ]


def make_network():
    """A network from images of 8 x 8 x 1 to ten scores."""
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def make_model(arguments):
    """A compiled model."""
    model = make_network()
    # HVD 3: n ranks together have a batch n times as large, for which the learning rate can be n times as large.
    optimizer = keras.optimizers.SGD(arguments.lr * hvd.size(), momentum=0.9, weight_decay=5e-4, global_clipnorm=5.0)
    # HVD 4: fit() now averages the gradients over the ranks, before they are clipped and applied.
    optimizer = hvd.DistributedOptimizer(optimizer, compression=getattr(hvd.Compression, arguments.compression))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, metrics=["accuracy"])
    return model


def last_saved(folder):
    """The last file in the folder, and the number of epochs of its training."""
    files = sorted(Path(folder).glob("epoch-*.keras"))
    if not files:
        raise SystemExit(f"nothing to resume from: no epoch-*.keras in {folder}")
    return files[-1], int(files[-1].stem.removeprefix("epoch-"))


class SaveEachEpoch(keras.callbacks.Callback):
    """Saves the whole model after each epoch. A file gets its name only when it is complete."""

    def __init__(self, folder):
        super().__init__()
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)

    def on_epoch_end(self, epoch, logs=None):
        """Saves the model. Keras calls this method."""
        unfinished = self.folder / "unfinished.keras"
        self.model.save(unfinished)
        os.replace(unfinished, self.folder / f"epoch-{epoch + 1:03}.keras")


class SayEachEpoch(keras.callbacks.Callback):
    """Prints a line after each epoch."""

    def on_epoch_end(self, epoch, logs=None):
        """Prints the line. Keras calls this method."""
        training, test = logs["accuracy"], logs["val_accuracy"]
        print(f"epoch {epoch + 1}: loss {logs['loss']:.4f}, training {training:.2%}, test {test:.2%}", flush=True)


def make_callbacks(arguments):
    """The callbacks: first those that all ranks need, then those of rank 0."""
    warmup, rate = min(arguments.warmup_epochs, arguments.epochs), arguments.lr * hvd.size()
    rest = max(1, arguments.epochs - warmup)
    callbacks = [
        # HVD 5: all ranks start from the state of rank 0, which is new or loaded.
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        # HVD 6: each rank has seen only its own images. After this callback the metrics are averages over all ranks.
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateScheduleCallback(
            rate, lambda epoch: 0.5 * (1 + math.cos(math.pi * (epoch - warmup) / rest)), start_epoch=warmup
        ),
    ]
    if warmup:
        callbacks.append(hvd.callbacks.LearningRateWarmupCallback(rate, warmup_epochs=warmup))
    if hvd.rank() == 0:  # one rank writes, because all have the same weights and metrics
        callbacks.append(SayEachEpoch())
        if arguments.logs:
            callbacks.append(keras.callbacks.TensorBoard(arguments.logs))
        if arguments.checkpoint:
            callbacks.append(SaveEachEpoch(arguments.checkpoint))
    return callbacks


def use_one_gpu():
    """Gives this rank one of the host's GPUs, if there are any. With JAX hvdlite works on CPUs only."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        if gpus:
            tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    elif keras.backend.backend() == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(hvd.local_rank() % torch.cuda.device_count())


def main(argv=None):
    """Trains, and returns the accuracy on the test images."""
    arguments = parse_arguments(argv)

    # HVD 1: join the other ranks. rank() is the number of this process, size() is the number of processes.
    hvd.init()
    say = common.speaker(hvd.rank())
    use_one_gpu()
    keras.utils.set_random_seed(arguments.seed)
    say(f"{hvd.size()} rank(s), {arguments.batch_size} images each in a batch, Keras on {keras.backend.backend()}")

    (images, labels), test_set = load_images()
    first_epoch = 0
    if arguments.resume and hvd.rank() == 0:
        file, first_epoch = last_saved(arguments.checkpoint)
        model = hvd.load_model(file, compression=getattr(hvd.Compression, arguments.compression))
    else:
        model = make_model(arguments)
    first_epoch = int(hvd.broadcast(first_epoch, 0, name="first_epoch"))

    started = time.perf_counter()
    model.fit(
        images,
        labels,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        initial_epoch=first_epoch,
        validation_data=test_set,
        callbacks=make_callbacks(arguments),
        verbose=1 if hvd.rank() == 0 and sys.stderr.isatty() else 0,
    )
    accuracy = float(hvd.allreduce(model.evaluate(*test_set, verbose=0)[1], name="accuracy"))
    say(f"test accuracy {accuracy:.2%} after {time.perf_counter() - started:.1f} s")

    # HVD 7: not needed for training. It shows that the ranks have the same weights.
    say(common.describe_weights(model.get_weights(), allgather_object))
    return accuracy


if __name__ == "__main__":
    main()
