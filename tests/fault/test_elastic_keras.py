"""Keras's fit in hvd.elastic.run: a rank dies in the middle of an epoch, and a spare takes its place at the last commit."""

import pytest
from support.job import launcher_has_ulfm, run_job

pytestmark = pytest.mark.skipif(not launcher_has_ulfm(), reason="this mpirun ends a job with its first process")

PROGRAM = """
    import os, signal, sys
    if os.environ["KERAS_BACKEND"] != "tensorflow":  # Keras imports it where it finds it, which takes seconds
        sys.modules["tensorflow"] = None
    import keras
    import numpy as np
    import hvdlite.keras as hvd

    WORLD = int(os.environ["OMPI_COMM_WORLD_RANK"])  # this process's number in MPI
    hvd.init()
    keras.utils.set_random_seed(3 + WORLD)  # the state of rank 0 counts
    inputs = np.linspace(-1, 1, 96 * 4, dtype=np.float32).reshape(96, 4)
    targets = (inputs**2).sum(1, keepdims=True)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)])
    model.compile(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(0.02)), loss="mse")
    state = hvd.elastic.KerasState(model, epoch=0, batch=0)
    state.register_reset_callbacks([lambda: print("reset at", state.epoch, state.batch, hvd.rank(), hvd.size(), flush=True)])

    class Die(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if (WORLD, state.epoch, batch) == (1, 1, 2):
                os.kill(os.getpid(), signal.SIGKILL)

    @hvd.elastic.run
    def train(state):
        rank, size = hvd.rank(), hvd.size()
        state.model.fit(
            inputs[rank::size],
            targets[rank::size],
            batch_size=12,
            epochs=3 - state.epoch,
            shuffle=False,
            verbose=0,
            callbacks=[
                hvd.elastic.UpdateEpochStateCallback(state),
                hvd.elastic.UpdateBatchStateCallback(state),
                hvd.elastic.CommitStateCallback(state, batches_per_commit=1),
                Die(),
            ],
        )

    train(state)
    weights = np.concatenate([keras.ops.convert_to_numpy(each).reshape(-1) for each in model.weights])
    assert (np.asarray(hvd.allgather(weights[None])) == weights).all()
    print("done", state.epoch, hvd.rank(), hvd.size(), int(model.optimizer.iterations), flush=True)
"""


@pytest.mark.parametrize(
    "backend", ["torch", pytest.param("tensorflow", marks=pytest.mark.slow), pytest.param("jax", marks=pytest.mark.slow)]
)
def test_a_spare_goes_on_in_the_place_of_a_rank_that_died_in_fit(backend):
    env = {"HVDLITE_ELASTIC_SPARES": "1", "HVDLITE_ELASTIC_MIN_RANKS": "2", "KERAS_BACKEND": backend}
    if backend == "jax":
        env["JAX_PLATFORMS"] = "cpu"
    result = run_job(PROGRAM, 3, mpirun_args=("--with-ft", "ulfm"), env=env)
    assert result.returncode == 0, result.report()
    # Four steps in the first epoch and two of the second were committed; fit begins an epoch anew.
    assert result.stdout[0] == "reset at 1 1 0 2\ndone 3 0 2 14\n", result.report()
    assert result.stdout[2] == "done 3 1 2 14\n", result.report()
