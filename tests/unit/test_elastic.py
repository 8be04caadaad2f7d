"""States and the loop around a training function, in one process that plays rank 0 or another.

(Over 400 lines, because the tests share the states and the ranks that they play.)
"""

import pickle
import re

import pytest

from hvdlite import elastic, runtime
from hvdlite.elastic import HostUpdateResult, ObjectState, State, run, run_fn
from hvdlite.errors import (
    HorovodInternalError,
    HostsUpdatedInterrupt,
    InvalidArgumentError,
    MismatchError,
    OperationTimeoutError,
    PeerLostError,
    UnsupportedError,
)


def alone(**attributes):
    """The state of the only rank."""
    return ObjectState(bcast_object=lambda obj: obj, get_rank=lambda: 0, **attributes)


def test_attributes():
    state = alone(epoch=3, history=[1])
    assert (state.epoch, state.history) == (3, [1])
    with pytest.raises(AttributeError):
        state.batch  # noqa: B018
    with pytest.raises(InvalidArgumentError, match="has a method 'save'"):
        alone(save=1)


def test_what_was_not_committed_is_gone_after_restore():
    state = alone(epoch=0, history=[])
    state.epoch = 1
    state.history.append("a")
    state.commit()
    for _ in range(2):  # what is done after a restore does not reach what was saved
        state.epoch = 9
        state.history.append("b")
        state.restore()
        assert (state.epoch, state.history) == (1, ["a"])


def test_what_changes_before_the_first_commit_is_restored_too():
    history = []
    state = alone(history=history)
    state.history.append("a")
    assert history == ["a"]
    state.restore()
    assert state.history == []


class Stateful:
    number = 1

    def state_dict(self):
        if self.number is None:
            raise ValueError("it is not built")
        return {"number": self.number}

    def load_state_dict(self, state):
        self.number = state["number"]


def test_an_object_that_cannot_be_saved_does_not_take_the_place_of_the_saved_one():
    state = alone(model=Stateful(), epoch=1)
    model = state.model
    other = Stateful()
    other.number = None
    with pytest.raises(ValueError, match="not built"):
        state.model = other
    state.epoch, model.number = 2, 2
    state.restore()
    assert (state.model, state.epoch, model.number) == (model, 1, 1)


def two_ranks(of_rank):
    """The states of rank 0 and rank 1, which is synchronised after rank 0; `of_rank` gives a rank's attributes."""
    sent = []

    def bcast(obj):
        sent[:] = sent[:1] if sent else [pickle.dumps(obj)]
        return pickle.loads(sent[0])

    return [ObjectState(bcast, lambda rank=rank: rank, **of_rank(rank)) for rank in (0, 1)]


def test_sync_takes_what_rank_0_has_at_present():
    root, state = two_ranks(lambda rank: {"epoch": rank, "history": []})
    root.epoch = 5  # loaded from a file, say
    root.history.append("root")
    state.epoch = 2
    for each in (root, state):
        each.sync()
        assert (each.epoch, each.history) == (5, ["root"])
    state.epoch = 6
    state.history.append("mine")
    state.restore()
    assert (state.epoch, state.history) == (5, ["root"])


class Engine:
    """Has a state of its own."""

    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Driver(Engine):
    """Drives others, which its state holds, as that of some schedulers does. One of them drives it in turn."""

    def state_dict(self):
        return vars(self)

    def load_state_dict(self, state):
        vars(self).update(state)


class Trainer:
    """Refers to others, and has no state of its own."""

    def __init__(self, rank):
        self.engine = Engine([rank])
        self.driver = Driver(rank)
        self.driver.driven = [(self.engine,), Driver(10 + rank)]
        self.driver.driven[1].back = self.driver
        self.step = self.driver.driven[1].load_state_dict
        self.count = rank

    def everything(self):
        inner = self.driver.driven[1]
        return self.engine, self.driver, inner, self.driver.driven[0][0], inner.back, self.step.__self__

    def values(self):
        return [self.count, self.engine.value, self.driver.value, self.driver.driven[1].value]


def test_what_has_a_state_of_its_own_stays_what_it_is():
    trainers = [Trainer(0), Trainer(1)]
    states = two_ranks(lambda rank: {"trainer": trainers[rank], "all": {"engines": [trainers[rank].engine]}})
    for state, trainer in zip(states, trainers, strict=True):
        before = trainer.everything()
        trainer.driver.value += 20
        trainer.engine.value.append(7)
        state.sync()
        expected = [0, [0, 7], 20, 10]
        for _ in range(2):
            assert all(new is old for new, old in zip(state.trainer.everything(), before, strict=True))
            assert state.all["engines"][0] is before[0]
            assert state.trainer.values() == expected
            state.trainer.count = trainer.driver.value = 99
            state.trainer.engine.value.append(8)
            trainer.driver.driven = None
            state.restore()


class Shared:
    """Is never copied, nor looked into."""

    def __init__(self):
        self.engine = Engine(1)

    def __deepcopy__(self, memo):
        return self


def test_what_copies_itself_is_left_alone():
    state = alone(shared=Shared(), epoch=1)
    state.shared.engine.value = 2
    state.restore()
    assert state.shared.engine.value == 2


def test_another_object_takes_the_place_of_one_that_stays():
    state = alone(engine=Engine(1), epoch=1)
    state.epoch = 2
    state.engine = other = Engine(3)
    other.value = 4
    state.restore()
    assert (state.engine, other.value, state.epoch) == (other, 3, 1)
    state.engine = None
    state.commit()
    state.restore()
    assert state.engine is None


def test_ranks_with_other_objects_that_stay():
    states = two_ranks(lambda rank: {"engines": [Engine(rank)] * (1 - rank), "driver": Driver(rank)})
    states[0].sync()
    with pytest.raises(MismatchError, match="state of rank 1 refers to Driver, but that of rank 0 to Driver, Engine"):
        states[1].sync()


@pytest.mark.parametrize("mine", [{}, {"batch": 0}, {"epoch": 0, "batch": 0}], ids=str)
def test_sync_refuses_other_attributes_than_those_of_rank_0(mine):
    root, state = two_ranks(lambda rank: mine if rank else {"epoch": 5})
    root.sync()
    text = re.escape(f"the attributes ['epoch'] on rank 0, but {sorted(mine)!r} on rank 1")
    with pytest.raises(MismatchError, match=text):
        state.sync()


def test_the_interface():
    state = State(lambda obj: obj, lambda: 0)
    for method in (state.save, state.restore, state.sync, state.commit):
        with pytest.raises(NotImplementedError):
            method()
    state.reset()


@pytest.mark.parametrize(
    ("updates", "skip_sync"),
    [([HostUpdateResult.removed], True), ([1, 1], True), ([HostUpdateResult.added], False), ([1, 2], False), ([0], False)],
)
def test_changed_hosts_interrupt_once(updates, skip_sync):
    state = alone(epoch=1)
    state.check_host_updates()
    for timestamp, update in enumerate(updates, start=1):
        state.on_hosts_updated(timestamp, update)
    state.epoch = 2
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync is skip_sync
    state.epoch = 3
    state.commit()
    state.on_hosts_updated(0, HostUpdateResult.added)  # older than the last one
    state.commit()


def test_a_note_that_comes_late_changes_nothing():
    state = alone(epoch=1)
    state.on_hosts_updated(5, HostUpdateResult.removed)
    state.on_hosts_updated(3, HostUpdateResult.added)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync is True
    state.on_hosts_updated(4, HostUpdateResult.added)
    state.commit()


def test_rank_0_decides_about_hosts():
    state = ObjectState(lambda _: (0, 7, HostUpdateResult.added, False), lambda: 1)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state = ObjectState(lambda _: (0, 0, HostUpdateResult.no_update, False), lambda: 1)
    state.on_hosts_updated(5, HostUpdateResult.removed)
    state.check_host_updates()


class Recorded(State):
    """Notes what happens to it."""

    def __init__(self):
        super().__init__(lambda obj: obj, lambda: 0)
        self.events = []
        self.register_reset_callbacks([lambda: self.events.append("callback 1"), lambda: self.events.append("callback 2")])

    def sync(self):
        self.events.append("sync")

    def restore(self):
        self.events.append("restore")

    def reset(self):
        self.events.append("reset state")


def test_a_function_that_just_runs():
    @run
    def train(state, *args, **kwargs):
        """Trains."""
        state.events.append("train")
        return args, kwargs

    state = Recorded()
    assert train(state, 1, two=2) == ((1,), {"two": 2})
    assert state.events == ["sync", "train"]
    assert (train.__name__, train.__doc__) == ("train", "Trains.")


AGAIN = ["reset job", "reset state", "callback 1", "callback 2"]


@pytest.mark.parametrize(
    ("raised", "between"),
    [
        (HorovodInternalError("x"), ["restore", *AGAIN, "sync"]),
        (PeerLostError("x"), ["restore", *AGAIN, "sync"]),
        (HostsUpdatedInterrupt(False), [*AGAIN, "sync"]),
        (HostsUpdatedInterrupt(True), AGAIN),
    ],
    ids=repr,
)
def test_the_loop_with_a_reset_of_ones_own(raised, between):
    state = Recorded()
    to_raise = [raised, HorovodInternalError("again")]

    def train(state):
        state.events.append("train")
        if to_raise:
            raise to_raise.pop(0)
        return "done"

    assert run_fn(train, lambda: state.events.append("reset job"))(state) == "done"
    assert state.events == ["sync", "train", *between, "train", "restore", *AGAIN, "sync", "train"]


def test_a_failure_during_sync_counts_as_well():
    state = Recorded()
    failures = [PeerLostError("while syncing")]

    def sync():
        state.events.append("sync")
        if failures:
            raise failures.pop()

    state.sync = sync
    assert run_fn(lambda _: "done", lambda: state.events.append("reset job"))(state) == "done"
    assert state.events == ["sync", "restore", *AGAIN, "sync"]


def test_a_loss_in_a_reset_callback_counts_as_well():
    state = Recorded()
    failures = [PeerLostError("in a callback")]
    state.register_reset_callbacks([lambda: failures and (_ for _ in ()).throw(failures.pop())])
    to_raise = [PeerLostError("in the function")]

    def train(state):
        if to_raise:
            raise to_raise.pop()
        return "done"

    assert run_fn(train, lambda: state.events.append("reset job"))(state) == "done"
    assert state.events == ["sync", "restore", *AGAIN, "restore", *AGAIN, "sync"]


def test_an_error_of_a_framework_in_sync_is_a_loss_if_hvdlites_error_is_behind_it():
    state = Recorded()
    failures = [ZeroDivisionError("rank 1 is gone")]

    def sync():
        if failures:
            raise failures.pop()

    state.sync = sync
    train = run_fn(lambda _: "done", lambda: state.events.append("reset job"), lambda error: PeerLostError(str(error)))
    assert train(state) == "done"
    assert state.events == ["restore", *AGAIN]


def raising(error):
    def train(state):
        state.epoch = 99
        raise error

    return train


@pytest.mark.parametrize(
    ("lost", "why"),
    [
        (PeerLostError("rank 1 is gone"), "start it with `hvdlite run --elastic`, or by Open MPI 5's mpirun"),
        (PeerLostError("rank 1 is gone: it raised ValueError: x"), "raised an exception, which would come again"),
        (PeerLostError("rank 1 is gone: rank 0 has heard nothing for 10 s"), "a host that is silent may still be at work"),
        (HorovodInternalError("rank 1 is gone"), "but neither with other hosts nor without a rank that has left on its own"),
    ],
    ids=repr,
)
def test_a_loss_with_which_the_job_cannot_go_on_ends_it_after_the_restore(lost, why):
    state = alone(epoch=4)
    with pytest.raises(UnsupportedError, match=f"elastic training cannot go on after this .*{why}") as caught:
        run(raising(lost))(state)
    assert "rank 1 is gone" in str(caught.value)
    assert "restored to this rank's last commit" in str(caught.value)
    assert caught.value.__cause__ is lost
    assert state.epoch == 4


def test_without_a_reset_changed_hosts_end_it_with_the_present_state():
    state = alone(epoch=4)
    with pytest.raises(UnsupportedError, match="as it was when the change was noticed"):
        run(raising(HostsUpdatedInterrupt(True)))(state)
    assert state.epoch == 99


@pytest.mark.parametrize("ulfm", [False, True])
@pytest.mark.parametrize(
    ("cause", "then"),
    [(HorovodInternalError("lost"), "to this rank's last commit"), (HostsUpdatedInterrupt(True), "change was noticed")],
    ids=repr,
)
def test_the_error_says_once_what_became_of_the_state(cause, then, ulfm, monkeypatch):
    monkeypatch.setattr(elastic.run.__globals__["recovery"], "Call", lambda: None)
    monkeypatch.setitem(elastic.run.__globals__, "launcher_spares_others", lambda: ulfm)
    with pytest.raises(UnsupportedError, match=then) as caught:
        run(raising(cause))(alone(epoch=4))
    assert str(caught.value).count("The state ") == 1


def test_what_is_no_state_is_named():
    def train(_):
        raise AssertionError

    with pytest.raises(InvalidArgumentError, match=r"the first argument of train\(\) is a dict, which has no sync\(\)"):
        run(train)({"epoch": 0})


@pytest.mark.parametrize("error", [MismatchError("m"), OperationTimeoutError("t"), ZeroDivisionError("z")], ids=repr)
def test_the_programs_own_errors_are_not_retried(error):
    state = Recorded()
    with pytest.raises(type(error)) as caught:
        run_fn(raising(error), lambda: state.events.append("reset job"))(state)
    assert caught.value is error
    assert state.events == ["sync"]


def test_horovods_names():
    assert elastic.HorovodInternalError is HorovodInternalError
    assert issubclass(HostsUpdatedInterrupt, RuntimeError)
    assert not issubclass(HostsUpdatedInterrupt, HorovodInternalError)
    assert HostUpdateResult.removed | HostUpdateResult.added == HostUpdateResult.mixed == 3


class LeavingEngine:
    """An engine whose peers answer at once."""

    failure_cause = ""

    def __init__(self, events):
        self._events = events

    def flight_record(self):
        return ""

    def publish_failure(self, cause):
        self._events.append(cause)


def test_a_rank_that_leaves_waits_after_its_last_words_only_where_the_launcher_would_end_the_others(monkeypatch):
    events = []
    process = runtime.Runtime()
    process.engine = LeavingEngine(events)
    monkeypatch.setattr(runtime.time, "sleep", lambda seconds: events.append("sleeps"))
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "1")
    process.announce("left after step 3")
    assert events == ["left after step 3"]
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "0")
    process.announce("left after step 3")
    assert events == ["left after step 3", "left after step 3", "sleeps"]
