"""How a bucket's gradients are found and handed to the engine, together or not at all."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from support.dlpack import needs_exchange
from support.thread_ranks import ALLREDUCE, SUM, engines, outcomes_of

from hvdlite._engine import BucketState, Gatherer, GradientState, Sent, launch
from hvdlite.backends import plain_of
from hvdlite.dtypes import DType
from hvdlite.errors import InvalidArgumentError

torch = pytest.importorskip("torch")

FLOAT32 = int(DType.FLOAT32)


class Bucket(BucketState):
    """Has attributes and can be referred to weakly, as what hvdlite.torch derives from it."""


class Gradient:
    """The same."""


def dirty_slot(grad):
    slot = GradientState()
    slot.param, slot.dirty = SimpleNamespace(grad=grad), True
    return slot


def items_of(slots):
    return [(slot, slot.param.grad, slot.param.grad, None) for slot in slots]


def tensor(address, **other):
    usual = {"dtype": "float", "layout": "strided", "device": "here", "is_contiguous": lambda: True, "is_neg": lambda: False}
    return SimpleNamespace(**{**usual, "data_ptr": lambda: address, **other})


def test_a_bucket_is_gathered_or_left_as_it_is():
    slots = [dirty_slot(tensor(0)), dirty_slot(tensor(1))]
    gatherer = Gatherer(slots, torch.Tensor, None, "float", "strided", "here", FLOAT32)
    for wrong in (
        {"dtype": "half"},
        {"layout": "sparse"},
        {"device": "there"},
        {"is_contiguous": lambda: False},
        {"is_neg": lambda: True},
    ):
        slots[1].param.grad = tensor(1, **wrong)
        assert gatherer.gather() is None
    slots[1].param.grad = None
    assert gatherer.gather() is None
    slots[1].param.grad, slots[1].dirty = tensor(1), False
    assert gatherer.gather() is None
    slots[1].dirty = True
    sent = gatherer.gather()
    assert list(sent) == items_of(slots)
    assert (len(sent), sent[1]) == (2, items_of(slots)[1])
    assert all(slot.dirty for slot in slots)  # nothing is sent yet
    assert sent.all_are_there()
    assert all(slot.filled for slot in slots)
    slots[1].aside = "a part of it"
    assert not sent.all_are_there()
    slots[1].aside = None
    slots[1].param.grad = tensor(1)  # replaced
    assert not sent.all_are_there()


def test_items_of_any_kind_are_sent():
    slots = [dirty_slot(tensor(0)), dirty_slot(None)]
    items = [*items_of(slots[:1]), (slots[1], None, "memory", "context")]
    sent = Sent(items, [0, 1])
    assert list(sent) == items
    assert not sent.all_are_there()
    assert Sent(items[:1], [0]).all_are_there()
    with pytest.raises(ValueError, match="one pointer"):
        Sent(items, [0])
    with pytest.raises(ValueError, match="four parts"):
        Sent([(slots[0], None, None)], [0])
    with pytest.raises(TypeError, match="no GradientState"):
        Sent([("a slot", None, None, None)], [0])
    with pytest.raises(TypeError, match="no GradientState"):
        Gatherer(["a slot"], torch.Tensor, None, torch.float32, torch.strided, torch.device("cpu"), FLOAT32)
    with pytest.raises(IndexError):
        sent[2]


def test_a_gradient_fits_only_on_the_device_of_the_plan():
    from hvdlite.torch.slots import WireForm

    form = WireForm(torch.ones(3), torch.float32, None)
    assert form.fits(torch.ones(3))
    assert not form.fits(torch.ones(3, device="meta"))


GRADIENTS = {
    "a matrix": (torch.ones(2, 3), True),
    "empty": (torch.ones(0), True),
    "with an offset": (torch.ones(4)[1:], True),
    "in another order": (torch.ones(2, 3).T, False),
    "of another dtype": (torch.ones(2, 3, dtype=torch.float64), False),
    "sparse": (torch.ones(2, 3).to_sparse(), False),
    "on another device": (torch.ones(2, 3, device="meta"), False),
    "with gaps": (torch.ones(4)[::2], False),
    "negative": (torch.ones(1, dtype=torch.complex64).conj().imag, False),
    "of a subclass": (torch.nn.Parameter(torch.ones(3)), True),  # asked as where torch has no functions for native code
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("told", [pytest.param("natively", marks=needs_exchange), "by attributes"])
def test_a_gradient_is_sent_from_where_it_is(kind, told):
    grad, is_found = GRADIENTS[kind]
    slot = dirty_slot(grad)
    plain = plain_of(torch.ones(1)) if told == "natively" else None
    assert (plain is not None) == (told == "natively")
    sent = Gatherer([slot], torch.Tensor, plain, torch.float32, torch.strided, torch.device("cpu"), FLOAT32).gather()
    assert (sent is not None) == is_found
    if sent is None:
        return
    before = grad.detach().clone()
    bucket, handles = BucketState(), [7]
    with engines(1) as (alone,):
        group = alone.engine.prepare([(ALLREDUCE, "g", FLOAT32, grad.shape, 0, 0, SUM, 0, 0, 1.0, 2.0)])
        launch(alone.engine, bucket, 3, group, sent, (), False, (), handles)
        assert (slot.dirty, bucket.launched, len(handles), handles[0]) == (False, 3, 2, 7)
        assert outcomes_of(alone.engine, handles[1:]) == [1]
    assert torch.equal(grad.detach(), 2 * before)
    grad.data.copy_(before)


def test_what_is_refused_is_not_sent():
    grads = [np.ones(3, np.float32), np.ones(3, np.float32)]
    slots = [dirty_slot(grad) for grad in grads]
    sent = Sent(items_of(slots), [grad.ctypes.data for grad in grads])
    bucket, handles = BucketState(), []
    with engines(1) as (alone,):
        group = alone.engine.prepare([(ALLREDUCE, "one", FLOAT32, (3,), 0, 0)])
        with pytest.raises(InvalidArgumentError, match="has 1 requests, but 2 addresses"):
            launch(alone.engine, bucket, 3, group, sent, (), False, (), handles)
        with pytest.raises(TypeError, match="no BucketState"):
            launch(alone.engine, "a bucket", 3, group, sent, (), False, (), handles)
        assert alone.engine.counters()["submitted"] == 0
    assert (bucket.launched, handles) == (0, [])
    assert all(slot.dirty for slot in slots)


def test_a_bucket_that_nobody_uses_goes():
    """Although its gatherer, the slots and what was sent refer to each other."""
    bucket, slot = Bucket(), dirty_slot(None)
    grad = Gradient()
    slot.bucket, slot.param.grad = bucket, grad
    bucket.gatherer = Gatherer([slot], torch.Tensor, None, torch.float32, torch.strided, torch.device("cpu"), FLOAT32)
    grad.sent = Sent([(slot, grad, grad, None)], [0])
    gone = [weakref.ref(bucket), weakref.ref(grad)]
    del bucket, slot, grad
    gc.collect()
    assert [each() for each in gone] == [None, None]
