"""Trains a small network to read handwritten digits in compiled steps of JAX: mpirun -n 2 python jax_digits.py.

On CPUs. Needs jax and scikit-learn (which brings the 1797 images of 8 x 8 pixels with it). HVD marks what hvdlite adds to a
program for one process.
"""

import argparse
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

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
    """Ten for each image."""
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
    # HVD 3: averages over the ranks, all in one call, inside the compiled step. What lies in one program needs a name.
    leaves, tree = jax.tree.flatten(gradients)
    loss, *leaves = grouped_allreduce([loss, *leaves], name="step")
    momentum = jax.tree.map(lambda old, new: 0.9 * old + new, momentum, jax.tree.unflatten(tree, leaves))
    return jax.tree.map(lambda param, change: param - lr * change, params, momentum), momentum, loss


def main(argv=None):
    """Trains, and returns the accuracy on the test images."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=15, help="passes over the training images")
    parser.add_argument("--batch-size", type=int, default=32, help="images in a batch of each rank")
    parser.add_argument("--lr", type=float, default=0.02, help="learning rate for one rank; multiplied by their number")
    arguments = parser.parse_args(argv)

    hvd.init()  # HVD 1: join the other ranks
    say = print if hvd.rank() == 0 else lambda *_: None
    digits = load_digits()
    images, labels = (digits.data / 16.0).astype(np.float32), digits.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(labels))  # the same on all ranks
    train, test = order[:-360], order[-360:]

    # HVD 2: all ranks start from rank 0's weights.
    params = make_params([64, 128, 10], seed=hvd.rank())
    leaves, tree = jax.tree.flatten(params)
    params = jax.tree.unflatten(tree, grouped_broadcast(leaves, root_rank=0, name="params"))
    momentum = jax.tree.map(jnp.zeros_like, params)

    accuracy, loss = 0.0, math.nan
    for epoch in range(arguments.epochs):
        # HVD 4: the ranks share out the images of each step; all take the same number of steps.
        shuffled = np.random.default_rng(1 + epoch).permutation(train)
        together = arguments.batch_size * hvd.size()
        for start in range(0, len(shuffled) - together + 1, together):
            mine = shuffled[start : start + together][hvd.rank() :: hvd.size()]
            params, momentum, loss = train_step(params, momentum, arguments.lr * hvd.size(), images[mine], labels[mine])
        # HVD 5: metrics are sums over the ranks. Outside of compiled programs hvd.allreduce takes arrays as they are.
        mine = test[hvd.rank() :: hvd.size()]
        right = int((scores(params, images[mine]).argmax(1) == labels[mine]).sum())
        right, seen = hvd.allreduce(np.array([right, len(mine)]), name="right", op=hvd.Sum).tolist()
        accuracy = right / seen
        say(f"epoch {epoch + 1}: loss {float(loss):.4f}, test {accuracy:.2%} on {hvd.size()} rank(s)")
    return accuracy


if __name__ == "__main__":
    main()
