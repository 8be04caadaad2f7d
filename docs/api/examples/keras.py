"""An example for each name of keras.md. The reference shows it below the name; the tests run it on two ranks."""

import keras
import numpy as np

import hvdlite.keras as hvd

hvd.init()


def _small_model(optimizer=None):  # a model, and two samples that differ between the ranks
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(optimizer or hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), loss="mse")
    x = np.array([[1.0], [2.0]]) + hvd.rank()
    return model, x, 3 * x


# --- training ---


def DistributedOptimizer():
    model, x, y = _small_model(hvd.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size())))
    model.fit(x, y, batch_size=2, verbose=0)  # a step with the average of all ranks' gradients
    hvd.check_consistency(model)


def PartialDistributedOptimizer():
    local = keras.layers.Dense(1)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), local])
    optimizer = hvd.PartialDistributedOptimizer(keras.optimizers.SGD(0.01), local_layers=[local], start_check="off")
    model.compile(optimizer, loss="mse")
    x = np.random.default_rng(hvd.rank()).normal(size=(4, 2))
    model.fit(x, x[:, :1], batch_size=4, verbose=0)  # the gradients of `local` stay this rank's own


def load_model():
    model, x, y = _small_model()
    model.fit(x, y, batch_size=2, verbose=0)
    model.save("model.keras")  # the optimizer is saved as the plain one
    loaded = hvd.load_model("model.keras")  # and is wrapped again
    loaded.fit(x, y, batch_size=2, verbose=0)
    assert int(loaded.optimizer.iterations.numpy()) == 2


def broadcast_variables():
    model, _, _ = _small_model()
    model.set_weights([np.array([[5.0 + hvd.rank()]])])
    hvd.broadcast_variables(model.variables, root_rank=1)
    assert model.get_weights()[0].tolist() == [[6.0]]


def broadcast_global_variables():
    try:
        hvd.broadcast_global_variables(0)
    except NotImplementedError as error:  # hvdlite.UnsupportedError
        print(error)  # the text names what to call instead


def check_consistency():
    model, x, y = _small_model()
    hvd.check_consistency(model, model.optimizer)  # now
    every_1000_steps = hvd.callbacks.ConsistencyCheckCallback(every=1000)
    model.fit(x, y, callbacks=[every_1000_steps], verbose=0)


# --- callbacks ---


def BroadcastGlobalVariablesCallback():
    model, x, y = _small_model()
    model.set_weights([np.array([[5.0 + hvd.rank()]])])
    model.fit(x, y, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0)], verbose=0)
    hvd.check_consistency(model)  # all ranks have begun with rank 0's weights


def BroadcastGlobalVariablesCallback_register_local_var():
    model, _, _ = _small_model()
    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    callback.register_local_var(model.layers[0].kernel)  # stays this rank's own


def MetricAverageCallback():
    model, x, y = _small_model()
    history = model.fit(x, y, callbacks=[hvd.callbacks.MetricAverageCallback()], verbose=0)
    losses = hvd.allgather(np.array(history.history["loss"]))
    assert losses[0] == losses[1]  # the same on all ranks


def LearningRateScheduleCallback():
    model, x, y = _small_model()
    schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, multiplier=lambda epoch: 0.5**epoch)
    history = model.fit(x, y, epochs=2, callbacks=[schedule], verbose=0)
    assert np.allclose(history.history["lr"], [0.1, 0.05])


def LearningRateWarmupCallback():
    model, x, y = _small_model()
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.01 * hvd.size(), warmup_epochs=2)
    model.fit(x, y, batch_size=1, epochs=3, callbacks=[warmup], verbose=0)
    assert np.isclose(float(model.optimizer.learning_rate.numpy()), 0.01 * hvd.size())


def BestModelCheckpoint():
    from pathlib import Path

    model, x, y = _small_model()
    checkpoint = hvd.callbacks.BestModelCheckpoint(monitor="loss", filepath="best.keras")
    model.fit(x, y, callbacks=[hvd.callbacks.MetricAverageCallback(), checkpoint], verbose=0)
    assert Path("best.keras").exists() or hvd.rank() > 0  # rank 0 writes it


def ConsistencyCheckCallback():
    model, x, y = _small_model()
    check = hvd.callbacks.ConsistencyCheckCallback(every=2)  # raises MismatchError if the ranks differ
    model.fit(x, y, batch_size=1, epochs=2, callbacks=[check], verbose=0)


def MarkStepCallback():
    model, x, y = _small_model()
    before = hvd.stats()
    model.fit(x, y, batch_size=1, callbacks=[hvd.callbacks.MarkStepCallback()], verbose=0)
    assert (hvd.stats() - before).steps == 2  # two batches


# --- values ---


def allreduce():
    assert np.asarray(hvd.allreduce(np.array([2.0]) * hvd.rank())).tolist() == [1.0]  # a tensor of Keras's backend


def allgather():
    assert np.asarray(hvd.allgather(np.full((1 + hvd.rank(), 1), hvd.rank()))).tolist() == [[0], [1], [1]]


def broadcast():
    assert np.asarray(hvd.broadcast(np.array([5.0 + hvd.rank()]), root_rank=1)).tolist() == [6.0]


def reducescatter():
    mine = hvd.reducescatter(np.array([1.0, 2.0]), op=hvd.Sum)
    assert np.asarray(mine).tolist() == [[2.0], [4.0]][hvd.rank()]


# --- elastic ---


def KerasState():
    model, _, _ = _small_model()
    model.set_weights([np.array([[5.0 + hvd.rank()]])])
    state = hvd.elastic.KerasState(model, epoch=0)
    state.sync()  # rank 0's weights on all ranks
    assert model.get_weights()[0].tolist() == [[5.0]]


def CommitStateCallback():
    model, x, y = _small_model()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    commit = hvd.elastic.CommitStateCallback(state, batches_per_commit=1)
    model.fit(x, y, batch_size=1, callbacks=[commit], verbose=0)


def UpdateBatchStateCallback():
    model, x, y = _small_model()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    callbacks = [hvd.elastic.UpdateBatchStateCallback(state), hvd.elastic.CommitStateCallback(state)]
    model.fit(x, y, batch_size=1, callbacks=callbacks, verbose=0)  # a call after a loss leaves out the batches that are done
    assert state.batch == 0  # the epoch has ended


def UpdateEpochStateCallback():
    model, x, y = _small_model()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    model.fit(x, y, epochs=3, callbacks=[hvd.elastic.UpdateEpochStateCallback(state)], verbose=0)
    assert state.epoch == 3


def run():
    model, x, y = _small_model()
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    callbacks = [hvd.elastic.UpdateEpochStateCallback(state), hvd.elastic.CommitStateCallback(state)]

    @hvd.elastic.run  # hvdlite calls train again after the loss of a rank, with the last commit
    def train(state):
        model.fit(x, y, epochs=2, initial_epoch=state.epoch, callbacks=callbacks, verbose=0)

    train(state)
    assert state.epoch == 2
