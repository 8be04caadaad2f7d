"""Trains a small network to read handwritten digits in compiled steps of JAX, on as many processes as mpirun starts.

    python jax_digits.py                                one process
    mpirun -n 2 python jax_digits.py                    two processes: the same script, and each gets a part of each batch

You should see one line for each epoch, and a test accuracy above 95 % at the end. On a terminal a bar shows the progress of
an epoch.

The program runs on CPUs. It needs jax and scikit-learn (which contains the 1797 images of 8 x 8 pixels). Comments with HVD mark
the places that hvdlite adds to a program for one process.
"""

import itertools
import math

import common
import jax
import jax.numpy as jnp
import numpy as np

import hvdlite as hvd
from hvdlite.jax import grouped_allreduce, grouped_broadcast


def make_params(sizes, seed):
    """Weights and biases of a network with layers of these sizes."""
    keys = jax.random.split(jax.random.key(seed), len(sizes) - 1)
    return [
        (jax.random.normal(key, shape) * (2 / shape[0]) ** 0.5, jnp.zeros(shape[1]))
        for key, shape in zip(keys, itertools.pairwise(sizes), strict=True)
    ]


def scores(params, images):
    """Ten scores for each image."""
    for weights, biases in params[:-1]:
        images = jax.nn.relu(images @ weights + biases)
    weights, biases = params[-1]
    return images @ weights + biases


def loss_of(params, images, labels):
    """The mean cross entropy of a batch."""
    return -jnp.take_along_axis(jax.nn.log_softmax(scores(params, images)), labels[:, None], 1).mean()


@jax.jit
def train_step(params, momentum, lr, images, labels):
    """One step of SGD. Returns the new state and the loss over the batches of all ranks."""
    loss, gradients = jax.value_and_grad(loss_of)(params, images, labels)
    # HVD 3: average over the ranks, all in one call inside the compiled step. A collective in a compiled program needs a name.
    leaves, tree = jax.tree.flatten(gradients)
    loss, *leaves = grouped_allreduce([loss, *leaves], name="step")
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, momentum, jax.tree.unflatten(tree, leaves))
    return jax.tree.map(lambda param, change: param - lr * change, params, momentum), momentum, loss


def main(argv=None):
    """Trains, and returns the accuracy on the test images."""
    parser = common.make_parser(__doc__)
    common.add_training(parser)
    arguments = parser.parse_args(argv)

    hvd.init()  # HVD 1: join the other ranks
    say = common.speaker(hvd.rank())
    train, test = ((images.reshape(-1, 64), labels.astype(np.int32)) for images, labels in common.digits())

    # HVD 2: all ranks start from rank 0's weights.
    params = make_params([64, 128, 10], seed=hvd.rank())
    leaves, tree = jax.tree.flatten(params)
    params = jax.tree.unflatten(tree, grouped_broadcast(leaves, root_rank=0, name="params"))
    momentum = jax.tree.map(jnp.zeros_like, params)

    accuracy, loss = 0.0, math.nan
    for epoch in range(arguments.epochs):
        # HVD 4: each rank takes a part of the images of each step. All ranks make the same number of steps.
        shuffled = np.random.default_rng(1 + epoch).permutation(len(train[1]))
        together = arguments.batch_size * hvd.size()
        steps = len(shuffled) // together
        progress = common.progress_bar(hvd.rank(), f"epoch {epoch + 1}/{arguments.epochs}")
        for step in range(steps):
            mine = shuffled[step * together : (step + 1) * together][hvd.rank() :: hvd.size()]
            params, momentum, loss = train_step(params, momentum, arguments.lr * hvd.size(), *(part[mine] for part in train))
            progress((step + 1) / steps, loss)
        # HVD 5: metrics are computed from sums over the ranks. Outside of compiled programs use hvd.allreduce.
        images, labels = (part[hvd.rank() :: hvd.size()] for part in test)
        right = int((scores(params, images).argmax(1) == labels).sum())
        right, seen = hvd.allreduce(np.array([right, len(labels)]), name="right", op=hvd.Sum).tolist()
        accuracy = right / seen
        say(f"epoch {epoch + 1}: loss {float(loss):.4f}, test {accuracy:.2%} on {hvd.size()} rank(s)")
    return accuracy


if __name__ == "__main__":
    main()
