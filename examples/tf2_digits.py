"""Trains a small convolutional network in a loop of its own with TensorFlow, on as many processes as mpirun starts.

    python tf2_digits.py                              one process
    mpirun -n 2 python tf2_digits.py                  two processes: the same script, and each reads half of the images
    mpirun -n 2 python tf2_digits.py --checkpoint digits --logs logs
    mpirun -n 2 python tf2_digits.py --checkpoint digits --resume --epochs 20

You should see one line for each epoch, with the loss and the accuracies over all ranks. The last lines have a test accuracy
above 97 %, and say that all ranks have the same weights, bit by bit. On a terminal a bar shows the progress of an epoch.

Every process ("rank") runs this whole file. Comments with HVD mark the seven places that hvdlite adds to an ordinary training
script. The program needs TensorFlow and scikit-learn (which contains the 1797 images of 8 x 8 pixels), and TensorBoard for
--logs. For training with fit() see keras_digits.py.
"""

import contextlib
import math
import os
import time

import common
import numpy as np
import tensorflow as tf

import hvdlite.tensorflow as hvd


def parse_arguments(argv=None):
    """Reads the command line; --help describes it."""
    return common.parse_digits(common.make_parser(__doc__), argv, "FOLDER", logs=True)


def load_images():
    """Training and test images with labels, the same on all ranks. An image has the shape 8 x 8 x 1."""
    return [(images[..., np.newaxis], labels) for images, labels in common.digits()]


def share_of(labels, seed, epoch):
    """The indices of this rank's images in an epoch."""
    # HVD 2: with n ranks each takes every n-th image. The order of the images is the same on all ranks, and differs between
    # epochs. All ranks take the same number of images, because each step needs a batch of every rank.
    order = np.random.default_rng((seed, epoch)).permutation(len(labels))
    return order[: len(order) // hvd.size() * hvd.size()][hvd.rank() :: hvd.size()]


def make_network():
    """A network from images of 8 x 8 x 1 to ten scores."""
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10),
        ]
    )


class WarmupThenCosine(tf.keras.optimizers.schedules.LearningRateSchedule):
    """The learning rate at each step: it rises from the rate for one rank to that for all ranks, and falls as a cosine."""

    def __init__(self, rate, steps_per_epoch, warmup_epochs, epochs):
        self.rate = rate
        self.warmup = max(1, round(warmup_epochs * steps_per_epoch))
        self.rest = max(1, epochs * steps_per_epoch - self.warmup)

    def __call__(self, step):
        """Keras calls it with the number of steps that are done."""
        step = tf.cast(step, tf.float32)
        rising = (1 + step * (hvd.size() - 1) / self.warmup) / hvd.size()
        falling = 0.5 * (1 + tf.cos(math.pi * tf.minimum(1.0, (step - self.warmup) / self.rest)))
        return self.rate * tf.where(step < self.warmup, rising, falling)


def over_all_ranks(*sums):
    """Adds up numbers over all ranks."""
    # HVD 6: each rank has seen only its own images. The sums over the ranks give the metrics over all images.
    return hvd.allreduce(tf.constant(sums, tf.float64), name="metrics", op=hvd.Sum).numpy().tolist()


def make_train_step(model, optimizer, compression):
    """The compiled function that trains on a batch. It returns the loss and the number of correct answers."""

    @tf.function(reduce_retracing=True)
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            scores = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
        # HVD 4: this tape gives the gradients averaged over all ranks, so they can be clipped as usual.
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients, _ = tf.clip_by_global_norm(gradients, 5.0)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, tf.math.count_nonzero(tf.argmax(scores, 1) == labels)

    return train_step


def train_one_epoch(train_step, batches, progress):
    """Trains for one epoch. Returns the loss and the accuracy over the images of all ranks."""
    loss_sum, right, seen = 0.0, 0, 0
    for step, (images, labels) in enumerate(batches, start=1):
        loss, right_here = train_step(images, labels)
        loss_sum += float(loss) * len(labels)
        right += int(right_here)
        seen += len(labels)
        progress(step / len(batches), loss_sum / seen)
    loss_sum, right, seen = over_all_ranks(loss_sum, right, seen)
    return loss_sum / seen, right / seen


def evaluate(model, images, labels):
    """The accuracy on the test images. Each rank tests a part of them."""
    images, labels = images[hvd.rank() :: hvd.size()], labels[hvd.rank() :: hvd.size()]  # each rank takes every n-th image
    right = int(tf.math.count_nonzero(tf.argmax(model(images, training=False), 1) == labels))
    right, seen = over_all_ranks(right, len(labels))
    return right / seen


def use_one_gpu():
    """Gives this rank one of the host's GPUs, if there are any, and its share of the host's cores."""
    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    with contextlib.suppress(RuntimeError):  # TensorFlow has started its threads in this process already
        tf.config.threading.set_intra_op_parallelism_threads(max(1, (os.cpu_count() or 1) // hvd.local_size()))


def main(argv=None):
    """Trains, and returns the accuracy on the test images."""
    arguments = parse_arguments(argv)

    # HVD 1: join the other ranks. rank() is the number of this process, size() is the number of processes.
    hvd.init()
    say = common.speaker(hvd.rank())
    use_one_gpu()
    tf.keras.utils.set_random_seed(arguments.seed)
    say(f"{hvd.size()} rank(s), {arguments.batch_size} images each in a batch, TensorFlow {tf.__version__}")

    (images, labels), test_set = load_images()
    steps = math.ceil(len(labels) // hvd.size() / arguments.batch_size)
    model = make_network()
    # HVD 3: n ranks together have a batch n times as large, for which the learning rate can be n times as large.
    schedule = WarmupThenCosine(arguments.lr * hvd.size(), steps, arguments.warmup_epochs, arguments.epochs)
    optimizer = tf.keras.optimizers.SGD(schedule, momentum=0.9, weight_decay=5e-4)
    optimizer.build(model.trainable_variables)
    train_step = make_train_step(model, optimizer, getattr(hvd.Compression, arguments.compression))

    first_epoch = tf.Variable(0)
    state = tf.train.Checkpoint(model=model, optimizer=optimizer, epoch=first_epoch)
    writer = tf.summary.create_noop_writer()
    if hvd.rank() == 0:  # one rank reads and writes files, because all have the same weights
        manager = tf.train.CheckpointManager(state, arguments.checkpoint, max_to_keep=2) if arguments.checkpoint else None
        if arguments.resume:
            last = manager.latest_checkpoint
            if last is None:
                raise SystemExit(f"nothing to resume from: no checkpoint in {arguments.checkpoint}")
            state.restore(last).assert_consumed()
        if arguments.logs:
            writer = tf.summary.create_file_writer(arguments.logs)
    # HVD 5: all ranks start from the state of rank 0, which is new or loaded.
    hvd.broadcast_variables([*model.variables, *optimizer.variables, first_epoch], root_rank=0)

    started = time.perf_counter()
    accuracy = evaluate(model, *test_set)
    for epoch in range(int(first_epoch), arguments.epochs):
        share = share_of(labels, arguments.seed, epoch)
        batches = tf.data.Dataset.from_tensor_slices((images[share], labels[share])).batch(arguments.batch_size)
        progress = common.progress_bar(hvd.rank(), f"epoch {epoch + 1}/{arguments.epochs}")
        loss, train_accuracy = train_one_epoch(train_step, batches, progress)
        accuracy = evaluate(model, *test_set)
        say(f"epoch {epoch + 1}: loss {loss:.4f}, training {train_accuracy:.2%}, test {accuracy:.2%}")
        with writer.as_default(step=epoch):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("training accuracy", train_accuracy)
            tf.summary.scalar("test accuracy", accuracy)
        first_epoch.assign(epoch + 1)
        if arguments.checkpoint and hvd.rank() == 0:
            manager.save(checkpoint_number=epoch + 1)
    writer.flush()
    say(f"test accuracy {accuracy:.2%} after {time.perf_counter() - started:.1f} s")

    # HVD 7: not needed for training. It shows that the ranks have the same weights.
    say(common.describe_weights(model.get_weights(), hvd.allgather_object))
    return accuracy


if __name__ == "__main__":
    main()
