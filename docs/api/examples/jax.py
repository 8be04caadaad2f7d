"""An example for each name of jax.md. The reference shows it below the name; the tests run it on two ranks."""

import jax
import jax.numpy as jnp
import numpy as np

import hvdlite as hvd
import hvdlite.jax

hvd.init()


def grouped_allreduce():
    @jax.jit
    def means(loss, gradient):
        return hvdlite.jax.grouped_allreduce([loss, gradient], name="step")

    loss, gradient = means(jnp.float32(hvd.rank()), jnp.ones(3) * hvd.rank())
    assert float(loss) == 0.5
    assert gradient.tolist() == [0.5, 0.5, 0.5]


def grouped_broadcast():
    params = {"bias": jnp.zeros(2) + hvd.rank(), "weights": jnp.ones((2, 3)) * hvd.rank()}
    leaves, tree = jax.tree_util.tree_flatten(params)
    params = jax.tree_util.tree_unflatten(tree, hvdlite.jax.grouped_broadcast(leaves, root_rank=1, name="params"))
    assert params["bias"].tolist() == [1.0, 1.0]


def send():
    if hvd.rank() == 0:
        gradient = jax.grad(lambda x: hvdlite.jax.send(x * x, dst=1))(2.0)
        assert float(gradient) == 12.0  # 2 x, times the gradient that rank 1 sends
    if hvd.rank() == 1:
        jax.grad(lambda like: 3 * hvdlite.jax.recv(like, src=0))(0.0)  # sends 3 to rank 0


def recv():
    if hvd.rank() == 0:
        hvdlite.jax.send(jnp.ones(3), dst=1)
    if hvd.rank() == 1:
        assert hvdlite.jax.recv(jnp.zeros(3), src=0).tolist() == [1.0, 1.0, 1.0]


def check_consistency():
    params = {"weights": jnp.ones((2, 3)), "bias": jnp.zeros(2)}
    hvdlite.jax.check_consistency(params)  # now
    checker = hvdlite.jax.check_consistency(every=2)
    for _ in range(4):  # compares after the 2nd and the 4th step
        checker.step(params)


def as_weight():
    weight = hvdlite.jax.as_weight(32, hvd.Average)  # 32 samples in this rank's batch
    assert (weight.shape, float(weight)) == ((), 32.0)


def call():
    from hvdlite.requests import Kind
    from hvdlite.xla import TensorGroup

    group = TensorGroup(Kind.ALLREDUCE, "sums", [("float32", (3,))], op=hvd.Sum)
    (total,) = hvdlite.jax.call([group], [jnp.ones(3, jnp.float32) * hvd.rank()])
    assert total.tolist() == [1.0, 1.0, 1.0]


def require_cpu():
    hvdlite.jax.require_cpu()  # raises UnsupportedError if JAX computes on a GPU or a TPU
    assert jax.default_backend() == "cpu"


def failure_in():
    from hvdlite.xla import failure_in

    step = jax.jit(lambda x: hvdlite.jax.grouped_allreduce([x], name="step"))
    try:
        np.asarray(step(jnp.ones(2 + hvd.rank()))[0])  # shapes that differ
    except Exception as error:  # JAX's
        assert isinstance(failure_in(error), hvd.MismatchError)
