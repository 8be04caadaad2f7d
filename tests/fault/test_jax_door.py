"""What a rank learns that waits inside a compiled JAX program while another one leaves."""

import pytest
from support.installed import need
from support.job import run_job
from support.parallel import XLA

need("jax")

SCRIPT = """
    import jax
    import jax.numpy as jnp
    import hvdlite
    from hvdlite.jax import call
    from hvdlite.requests import Kind
    from hvdlite.xla import TensorGroup, failure_in

    jax.config.update("jax_platforms", "cpu")
    hvdlite.init()

    @jax.jit
    def step(x):
        return call([TensorGroup(Kind.ALLREDUCE, "gradients", [("float32", (3,))])], [x], alone={alone})[0]

    step(jnp.ones(3)).block_until_ready()
    if hvdlite.rank() == 1:
        hvdlite.shutdown()
    else:
        try:
            step(jnp.ones(3)).block_until_ready()
        except (RuntimeError, ValueError) as error:
            print("failed with", type(failure_in(error)).__name__, failure_in(error))
"""


@pytest.mark.parametrize("alone", [False, True])
def test_a_rank_that_leaves_ends_the_wait_of_the_other(alone):
    job = run_job(SCRIPT.format(alone=alone), 2, env=XLA)
    assert job.returncode == 0, job.report()
    assert "failed with AbortedError" in job.stdout[0], job.report()
    assert "rank 1" in job.stdout[0]


LAST_STEPS = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import hvdlite
    from hvdlite.jax import call
    from hvdlite.requests import Kind
    from hvdlite.xla import TensorGroup

    jax.config.update("jax_platforms", "cpu")
    hvdlite.init()

    @jax.jit
    def step(x):
        return call([TensorGroup(Kind.ALLREDUCE, "x", [("float32", (300, 300))])], [jnp.sin(x @ x)], alone={alone})[0]

    x = jnp.ones((300, 300))
    for _ in range(20):
        x = step(x)
    if hvdlite.rank() == 0:
        print("saved", np.asarray(x).shape)
"""


@pytest.mark.parametrize("alone", [False, True])
def test_a_rank_that_reads_no_result_takes_part_in_the_last_steps(alone):
    """JAX returns from a step when it has started it, so this rank's program ends many steps before the others."""
    job = run_job(LAST_STEPS.format(alone=alone), 2, env=XLA)
    assert job.returncode == 0, job.report()
    assert job.stdout[0] == "saved (300, 300)\n", job.report()
    assert "Traceback" not in job.stderr[1], job.report()


SEVERAL_DEVICES = """
    import jax
    import hvdlite
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from hvdlite.jax import grouped_allreduce

    hvdlite.init()
    array = jax.device_put(np.arange(4.0), NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x")))
    try:
        grouped_allreduce([array], name="x")
    except hvdlite.UnsupportedError as error:
        print(error)
"""


def test_an_array_on_several_devices_is_refused():
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    job = run_job(SEVERAL_DEVICES, 1, env=environment)
    assert job.stdout[0].startswith("an array of shape (4,) is on 2 devices"), job.report()


ELASTIC = """
    import numpy as np
    import keras
    import hvdlite.keras as hvd

    hvd.init()
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse", jit_compile=True)
    state = hvd.elastic.KerasState(model, epoch=0)
    x = np.full((8, 3), hvd.rank() + 1.0, np.float32)

    @hvd.elastic.run
    def train(state):
        model.fit(x, x[:, :1], verbose=0)
        state.epoch = 1
        state.commit()
        if hvd.rank() == 1:
            hvd.shutdown()
            return
        model.fit(x, x[:, :1], verbose=0)

    try:
        train(state)
    except Exception as error:
        print("failed with", type(error).__name__, "because of", type(error.__cause__).__name__, "in epoch", state.epoch)
"""


@pytest.mark.slow  # it imports JAX and Keras twice
def test_elastic_training_with_keras_knows_a_lost_rank():
    environment = {"JAX_PLATFORMS": "cpu", "KERAS_BACKEND": "jax", **XLA}
    job = run_job(ELASTIC, 2, env=environment, fresh=True)  # for the doors of JAX and Keras (support/warm.py)
    assert job.returncode == 0, job.report()
    assert "failed with UnsupportedError because of AbortedError in epoch 1" in job.stdout[0], job.report()
