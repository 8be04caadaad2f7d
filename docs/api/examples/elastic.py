"""An example for each name of elastic.md. The reference shows it below the name; the tests run it on two ranks."""

import numpy as np

import hvdlite as hvd
from hvdlite import elastic

hvd.init()


def run():
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0, weights=np.zeros(2))

    @elastic.run  # hvdlite calls train again after the loss of a rank, with the last commit
    def train(state):
        while state.step < 3:
            state.weights += hvd.allreduce(np.ones(2), name="gradient")
            state.step += 1
            state.commit()

    train(state)
    assert state.weights.tolist() == [3.0, 3.0]


def run_fn():
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, attempts=0)

    def train(state):
        state.attempts += 1
        state.commit()
        if state.attempts == 1:
            raise hvd.HorovodInternalError("as if a rank were lost")

    def reset():
        hvd.shutdown()
        hvd.init()

    elastic.run_fn(train, reset)(state)
    assert state.attempts == 2


def State():
    class Counter(elastic.State):
        def __init__(self):
            super().__init__(hvd.broadcast_object, hvd.rank)
            self.value = self.saved = hvd.rank()

        def save(self):
            self.saved = self.value

        def restore(self):
            self.value = self.saved

        def sync(self):
            self.value = hvd.broadcast_object(self.value, root_rank=0)
            self.save()

    counter = Counter()
    counter.sync()  # rank 0's value, which is 0, on all ranks
    counter.commit()  # saves it
    counter.value += 1
    counter.restore()
    assert counter.value == 0


def State_register_reset_callbacks():
    state, sizes = elastic.ObjectState(hvd.broadcast_object, hvd.rank), []
    state.register_reset_callbacks([lambda: sizes.append(hvd.size())])
    state.on_reset()  # `hvdlite.elastic.run` calls it when the ranks have changed
    assert sizes == [hvd.size()]


def State_on_hosts_updated():
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, step=0)
    if hvd.rank() == 0:  # a program that adds hosts itself says so
        state.on_hosts_updated(timestamp=1.0, update_res=elastic.HostUpdateResult.added)
    try:
        state.check_host_updates()
    except elastic.HostsUpdatedInterrupt as interrupt:  # on all ranks
        assert not interrupt.skip_sync  # the new ranks need the state


def State_reset():
    class Resized(elastic.ObjectState):
        def reset(self):  # `on_reset` calls it
            self.rate = 0.1 * hvd.size()

    state = Resized(hvd.broadcast_object, hvd.rank, rate=0.0)
    state.on_reset()
    assert state.rate == 0.1 * hvd.size()


def ObjectState():
    state = elastic.ObjectState(hvd.broadcast_object, hvd.rank, epoch=hvd.rank(), losses=[])
    state.sync()  # all ranks get rank 0's values, which are saved
    state.losses.append(0.5)
    state.restore()  # back to the saved values
    assert (state.epoch, state.losses) == (0, [])
    state.epoch = 1
    state.save()


def HostUpdateResult():
    assert elastic.HostUpdateResult.mixed == elastic.HostUpdateResult.added | elastic.HostUpdateResult.removed


def HostsUpdatedInterrupt():
    try:
        raise elastic.HostsUpdatedInterrupt(skip_sync=True)
    except elastic.HostsUpdatedInterrupt as interrupt:  # as `hvdlite.elastic.run` does
        assert interrupt.skip_sync


def LossIn():
    class FrameworkError(Exception):
        pass

    def loss_in(error: Exception) -> hvd.HorovodInternalError | None:  # a LossIn
        return hvd.HorovodInternalError(str(error)) if "rank is lost" in str(error) else None

    assert loss_in(FrameworkError("the rank is lost"))
    assert loss_in(FrameworkError("out of memory")) is None
    elastic.run(lambda state: None, loss_in=loss_in)
