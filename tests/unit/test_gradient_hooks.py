"""The native hooks and what they ask for of hvdlite.torch; what passes are is in native/cases/bindings/passes.cc."""

import importlib
import threading
import weakref
from collections import OrderedDict
from types import SimpleNamespace

import pytest

from hvdlite._engine import GradientHook, GradientState, PassDriver

CPU, GPU = -1, 0
OUTER, INNER = 7, 8


class Bucket(SimpleNamespace):
    """Can be referred to weakly."""


def noted(name):
    return lambda self: self.log.append(name)


class Driver(PassDriver):
    """Notes what it is asked for. Its buckets are launched, and their gradients reduced, at once."""

    def __init__(self, gradients, device=CPU):
        super().__init__(lambda: self.task, lambda leaving: self.nested)
        self.task, self.nested, self.log, self.has_lost_engine = OUTER, False, [], False
        self.bucket = Bucket(gradients=gradients, device=device, see_stream=lambda: self.log.append("see stream"))

    def plan(self):
        self.set_plan([self.bucket])

    _plan = plan

    def _launch(self, number, wake):
        self.log.append(("launch", number, wake))
        for gradient in self.buckets[number].gradients:
            gradient.dirty = False
        self.launched(number)

    def _hold_reduced(self, gradient, grad):
        self.log.append(("held", grad))
        gradient.reduced_part, gradient.param.grad = grad, None

    def _refuse_pass(self, gradient):
        raise AssertionError("too many passes")

    def _watch(self, stamp, nested):
        self.log.append(("watch", stamp, nested))

    def _wait(self, strict):
        self.log.append(("wait", strict))
        self.settled()

    def _has_lost_engine(self):
        return self.has_lost_engine

    _use_engine, _begin_check, _merge_rest = noted("engine"), noted("check"), noted("merge")
    _require_hooks, _require_no_tangents, restore = noted("hooks"), noted("tangents"), noted("restore")


def state_of(grad=None):
    gradient = GradientState()
    gradient.param = SimpleNamespace(grad=grad, requires_grad=True)
    return gradient


@pytest.fixture
def case():
    gradients = [state_of(), state_of()]
    driver = Driver(gradients)
    on_before = [GradientHook(driver, gradient, False) for gradient in gradients]
    on_after = [GradientHook(driver, gradient, True) for gradient in gradients]
    return SimpleNamespace(driver=driver, log=driver.log, gradients=gradients, on_before=on_before, on_after=on_after)


def test_a_pass_from_its_first_gradient_to_its_end(case):
    case.driver.plan()
    case.on_after[0]("tensor")
    assert case.log == ["engine", ("watch", 1, False)]
    assert (case.gradients[0].dirty, case.gradients[0].stamp, case.gradients[1].dirty) == (True, 1, False)
    case.on_after[1]("tensor")
    assert case.log[2:] == [("launch", 0, True)]
    case.log.clear()
    case.driver.task_ended(1)
    assert case.log == ["check", ("wait", True), "tangents"]
    case.driver.task_ended(1)  # it is over already
    assert len(case.log) == 3
    assert (case.driver.turn, case.driver.running, case.driver.unsettled) == (1, False, False)


def test_what_is_missing_is_launched_at_the_end_and_the_plan_made_then(case):
    case.on_after[0]("tensor")
    case.log.clear()
    case.driver.task_ended(1)
    assert case.log == [("launch", 0, False), "check", ("wait", True), "hooks", "tangents"]
    assert [gradient.bucket for gradient in case.gradients] == [0, 0]
    case.driver.drop_plan()
    assert ([gradient.bucket for gradient in case.gradients], case.driver.buckets) == ([-1, -1], [])


def test_what_a_lost_pass_owes_is_sent_and_waited_for_later(case):
    case.driver.plan()
    case.on_after[0]("tensor")
    case.log.clear()
    case.driver.task_lost(1)
    assert case.log == [("launch", 0, False), "check"]
    assert case.driver.unsettled
    case.gradients[1].param.grad = None
    case.on_before[1]("increment")
    assert case.log[2:] == ["restore", ("wait", False), "merge"]
    assert not case.driver.unsettled


def test_what_a_pass_of_a_job_that_has_ended_owes_is_dropped(case):
    case.driver.plan()
    case.on_after[0]("tensor")
    case.driver.task_lost(1)
    case.log.clear()
    case.driver.has_lost_engine = True
    case.driver.settle()
    assert case.log == ["restore"]
    assert not case.driver.unsettled


def test_a_nested_pass_ends_with_the_one_around_it(case):
    case.driver.plan()
    case.driver.task, case.driver.nested = INNER, True
    case.on_after[0]("tensor")
    case.on_after[1]("tensor")
    assert case.log == ["engine", ("watch", 1, True)]
    case.driver.task, case.driver.nested = OUTER, False
    case.driver.task_left(1)
    assert case.log[2:] == [("watch", 1, False)]
    case.driver.task_left(1)
    assert len(case.log) == 3  # this one is known
    case.driver.task = -1
    case.driver.task_left(1)  # there is none around it
    assert case.log[3:] == [("launch", 0, False), "check"]


def test_a_frozen_bucket_without_gradients_is_not_launched(case):
    frozen, unused = state_of(), state_of()
    case.driver.set_plan([case.driver.bucket, *(Bucket(gradients=[gradient], device=CPU) for gradient in (frozen, unused))])
    frozen.param.requires_grad = False
    case.on_after[0]("tensor")
    case.driver.task_ended(1)
    assert [entry[1] for entry in case.log if entry[0] == "launch"] == [0, 2]
    case.driver.suspended = 1  # what is kept back another rank may have of it
    case.on_after[0]("tensor")
    case.driver.task_ended(2)
    assert case.driver.local_gradients
    case.driver.begin_by_hand()
    case.driver.reduce(True)
    assert [entry[1] for entry in case.log if entry[0] == "launch"] == [0, 2, 0, 1, 2]


def test_too_many_passes_are_refused_unless_the_gradients_were_reset(case):
    case.driver.passes_per_step = 2
    for stamp in (1, 2, 3):  # the third finds nothing that is finished
        case.on_after[0]("tensor")
        case.driver.task_ended(stamp)
    case.gradients[0].reduced_part = "a part of it"
    case.on_after[0]("tensor")
    case.driver.task_ended(4)
    with pytest.raises(AssertionError, match="too many"):
        case.on_after[0]("tensor")
    assert case.gradients[0].dirty


def test_gradients_on_a_gpu_are_seen_in_their_streams():
    gradient = state_of()
    driver = Driver([gradient], GPU)
    driver.plan()
    GradientHook(driver, gradient, True)("tensor")
    assert driver.log[2:] == ["see stream", ("launch", 0, True)]


def test_before_a_gradient(case):
    gradient, before = case.gradients[0], case.on_before[0]
    before("increment")
    assert gradient.fresh
    grad = gradient.param.grad = SimpleNamespace(_version=4)
    gradient.fresh, gradient.dirty = False, True
    before("increment")  # backward adds to what is not reduced yet
    gradient.dirty = False
    gradient.forget()
    assert gradient.is_zero()
    before("increment")  # zeros are there, as the reset has left them
    assert (case.log, gradient.fresh) == ([], False)
    grad._version = 5
    assert not gradient.is_zero()
    before("increment")  # something finished
    assert (case.log, gradient.reduced_part, gradient.fresh) == ([("held", grad)], grad, True)
    before("increment")  # the program has set it to None
    assert (gradient.reduced_part, gradient.fresh) == (None, True)


def test_a_fresh_gradient_is_offered_its_place_once(case):
    offered = []
    gradient = case.gradients[0]
    gradient.place = SimpleNamespace(move_in=offered.append)
    case.on_after[0]("tensor")
    assert offered == []
    case.on_before[1]("increment")
    gradient.fresh = True
    case.on_after[0]("tensor")
    case.on_after[0]("tensor")
    assert offered == [gradient.param]


def test_an_error_in_a_hook_is_raised(case):
    case.driver._use_engine = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        case.on_after[0]("tensor")
    with pytest.raises(AttributeError, match="no attribute 'grad'"):
        GradientHook(case.driver, GradientState(), False)("increment")
    with pytest.raises(RuntimeError):
        GradientHook("a driver", case.gradients[0], False)
    with pytest.raises(RuntimeError):
        GradientHook(case.driver, "a gradient", False)
    with pytest.raises(TypeError, match="one tensor"):
        case.on_after[0]()


def test_what_backward_has_added_stays_when_the_hook_raises(case):
    def interrupted(*_):
        raise KeyboardInterrupt

    case.driver._use_engine = interrupted
    with pytest.raises(KeyboardInterrupt):
        case.on_after[0]("tensor")
    assert (case.gradients[0].dirty, case.gradients[0].stamp) == (True, 0)
    del case.driver._use_engine
    case.driver.plan()
    case.on_after[0]("tensor")
    case.gradients[0].dirty = False  # it is in flight
    case.driver._launch = interrupted
    with pytest.raises(KeyboardInterrupt):
        case.on_after[1]("tensor")
    assert not case.gradients[0].dirty
    assert case.gradients[1].dirty


def test_hooks_of_several_threads_take_turns(case):
    case.driver.plan()
    case.driver.lock = threading.RLock()
    held = []

    def tried():
        thread = threading.Thread(target=lambda: held.append(not case.driver.lock.acquire(blocking=False)))
        thread.start()
        thread.join()

    case.driver._use_engine = tried
    case.on_after[0]("tensor")
    case.driver.task = INNER
    case.driver._watch = lambda *_: 1 // 0
    with pytest.raises(ZeroDivisionError):
        case.on_after[1]("tensor")
    assert held == [True, True]
    tried()
    assert held[2:] == [False]


def test_reducers_that_nobody_uses_go(case):
    gone = [weakref.ref(case.driver), weakref.ref(case.driver.bucket)]
    case.driver.plan()
    case.driver.hooks = [*case.on_before, *case.on_after]
    vars(case).clear()
    importlib.import_module("gc").collect()
    assert [each() for each in gone] == [None, None]


def test_a_hook_fetches_ahead_what_may_be_gone(case):
    hook, other = case.on_before[0], case.on_after[1]
    other.fetch_ahead(())
    lists = [OrderedDict({number: hook}) for number in range(40)]  # more than it takes
    gone = weakref.ref(lists[0])
    hook.fetch_ahead([*lists, other, case.gradients[0], hook])
    other.fetch_ahead((hook, lists[0]))
    del lists
    assert gone() is None
    hook("increment")
    other("tensor")
    assert (case.gradients[0].fresh, case.gradients[1].stamp) == (True, 1)
    with pytest.raises(TypeError, match="no sequence"):
        hook.fetch_ahead(3)


def test_hooks_fetch_ahead_what_those_of_the_next_gradient_read():
    torch = pytest.importorskip("torch")
    hooks = importlib.import_module("hvdlite.torch.hooks")
    told = []

    class Hook:
        def __init__(self, *_):
            pass

        def fetch_ahead(self, objects):
            told.append((self, objects))

        def __call__(self, tensor):
            raise AssertionError("there is no backward")

    params = [torch.ones(1, requires_grad=True) for _ in range(4)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "GradientHook", Hook)
        handles = [hooks.install(param, None, None) for param in params]
        assert len(handles[1]) == 2
        params[2]._backward_hooks.clear()  # somebody has
        params[2]._post_accumulate_grad_hooks.clear()
        hooks.fetch_ahead([((param,), its) for param, its in zip(params, handles, strict=True)] + [((), [])])
    first, second, last = params[0], params[1], params[3]
    lists = [[param._backward_hooks, param._post_accumulate_grad_hooks] for param in (first, second, last)]
    natives = [[next(iter(items.values())) for items in pair] for pair in lists]
    assert told == [
        (natives[2][0], []),
        (natives[1][0], [*lists[2], *natives[2], last]),
        (natives[0][0], [*lists[1], *natives[1], second]),
    ]
