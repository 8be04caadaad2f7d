"""The native hooks: the usual case is done without Python, any other is left to `otherwise` with nothing changed."""

import importlib
import weakref
from collections import OrderedDict
from types import SimpleNamespace

import pytest

from hvdlite._engine import BucketState, GradientHook, GradientState, PassState

CPU = -1


def make(after, task=7):
    state, slot, bucket, left = PassState(), GradientState(), BucketState(), []
    state._current_task = lambda: task
    state._task, state._stamp, state._eager = 7, 3, True
    bucket.device, bucket.missing = CPU, 2
    slot.param, slot.bucket = SimpleNamespace(grad=None), bucket
    hook = GradientHook(state, slot, lambda *args: left.append(args), after)
    return SimpleNamespace(state=state, slot=slot, bucket=bucket, left=left, hook=hook)


def test_a_gradient_is_counted():
    case = make(after=True)
    case.hook("tensor")
    assert (case.slot.dirty, case.slot.stamp, case.bucket.missing, case.left) == (True, 3, 1, [])


@pytest.mark.parametrize(
    "change",
    [
        lambda case: setattr(case.bucket, "missing", 1),
        lambda case: setattr(case.bucket, "device", 0),
        lambda case: setattr(case.slot, "stamp", 3),
        lambda case: setattr(case.state, "_task", 8),
        lambda case: (setattr(case.slot, "fresh", True), setattr(case.slot, "place", "a place")),
        lambda case: setattr(case.slot, "bucket", None),
    ],
    ids=["last of its bucket", "on a GPU", "again", "another task", "to be moved", "no bucket"],
)
def test_the_rest_is_left_to_python(change):
    case = make(after=True)
    change(case)
    before = (case.slot.dirty, case.slot.stamp, case.bucket.missing)
    case.hook("tensor")
    assert case.left == [(case.slot, "tensor")]
    assert (case.slot.dirty, case.slot.stamp, case.bucket.missing) == before


def test_before_a_gradient():
    case = make(after=False)
    case.hook("increment")
    assert case.slot.fresh
    case.slot.param.grad = SimpleNamespace(_version=4)
    case.slot.dirty = True
    case.hook("increment")  # backward adds to what is not reduced yet
    case.slot.dirty = False
    case.slot.forget()
    case.hook("increment")  # zeros are there, as the reset has left them
    assert not case.left
    case.slot.param.grad._version = 5
    case.hook("increment")  # something finished
    case.state._unsettled = True
    case.slot.param.grad._version = 4
    case.hook("increment")
    assert len(case.left) == 2


def test_an_error_in_a_hook_is_raised():
    case = make(after=True)
    case.state._current_task = lambda: 1 // 0
    with pytest.raises(ZeroDivisionError):
        case.hook("tensor")
    with pytest.raises(AttributeError, match="no parameter"):
        GradientHook(case.state, GradientState(), print, False)("increment")


@pytest.mark.parametrize("was_counted", [False, True])
def test_what_backward_has_added_stays_when_the_hook_raises(was_counted):
    case = make(after=True)
    case.bucket.missing = 1  # launched by Python

    def interrupted(slot, tensor):
        if was_counted:
            slot.stamp = case.state._stamp
        raise KeyboardInterrupt

    hook = GradientHook(case.state, case.slot, interrupted, True)
    with pytest.raises(KeyboardInterrupt):
        hook("tensor")
    assert case.slot.dirty != was_counted  # if it was, it may be in flight already


def test_a_hook_fetches_ahead_what_may_be_gone():
    case, other = make(after=False), make(after=True)
    other.hook.fetch_ahead(())
    lists = [OrderedDict({number: case.hook}) for number in range(40)]  # more than it takes
    gone = weakref.ref(lists[0])
    case.hook.fetch_ahead([*lists, other.hook, case.slot, case.hook])
    other.hook.fetch_ahead((case.hook, lists[0]))
    del lists
    assert gone() is None
    case.hook("increment")
    other.hook("tensor")
    assert (case.slot.fresh, other.slot.stamp) == (True, 3)
    with pytest.raises(TypeError, match="no sequence"):
        case.hook.fetch_ahead(3)


def test_hooks_fetch_ahead_what_those_of_the_next_gradient_read():
    torch = pytest.importorskip("torch")
    hooks = importlib.import_module("hvdlite.torch.hooks")
    told = []

    class Hook:
        def fetch_ahead(self, objects):
            told.append((self, objects))

        def __call__(self, tensor):
            raise AssertionError("there is no backward")

    params = [torch.ones(1, requires_grad=True) for _ in range(4)]
    handles = [hooks.install(param, Hook(), Hook()) for param in params]
    assert len(handles[1]) == 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hooks, "GradientHook", Hook)
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
