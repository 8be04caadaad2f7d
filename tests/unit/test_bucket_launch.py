"""How a bucket's gradients are found and handed to the engine, together or not at all."""

import gc
import importlib
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
from support.dlpack import needs_exchange
from support.thread_ranks import ALLREDUCE, SUM, engines, outcomes_of

from hvdlite._engine import Gatherer, GradientState, PassDriver, launch
from hvdlite.backends import plain_of
from hvdlite.dtypes import DType
from hvdlite.errors import HvdliteError, InvalidArgumentError, UnsupportedError

torch = pytest.importorskip("torch")

FLOAT32 = int(DType.FLOAT32)


def test_a_launch_comes_after_the_streams_of_its_gradients(monkeypatch):
    """Also after a backward that has raised: autograd has not ordered the streams then."""
    gpu = importlib.import_module("hvdlite.torch.gpu")
    current, followed = [7], []
    monkeypatch.setattr(gpu, "current_stream", lambda _: current[-1])
    monkeypatch.setattr(gpu, "follow", lambda _, streams: followed.append(set(streams)))
    streams = gpu.StreamsOfBucket(0)
    streams.see()
    current.append(5)
    streams.see()
    assert streams.gather() == (5, 7)
    assert followed == [{7}]
    assert streams.gather() == (5,)
    assert followed == [{7}]


class Gradient:
    """Can be referred to weakly, and has attributes."""


def dirty_gradient(grad):
    gradient = GradientState()
    gradient.param, gradient.dirty = SimpleNamespace(grad=grad), True
    return gradient


class Launching(PassDriver):
    """Launches its bucket at the end of a pass unless it is launched already."""

    def __init__(self, gradients):
        super().__init__(lambda: 0, lambda leaving: False)
        self.set_plan([SimpleNamespace(gradients=gradients, device=-1)])
        self.begin_by_hand()
        self.launches = 0

    def _launch(self, number, wake):
        self.launches += 1

    def _wait(self, strict):
        self.settled()

    def _begin_check(self):
        """There is none."""


def form(**other):
    usual = {"dtype_in_place": "float", "memory": "here", "strides": (1, 2), "dtype": FLOAT32, "is_contiguous": True}
    return SimpleNamespace(**{**usual, **other})


def tensor(address, **other):
    usual = {"dtype": "float", "layout": "strided", "device": "here", "is_contiguous": lambda: True, "is_neg": lambda: False}
    return SimpleNamespace(**{**usual, "stride": lambda: (1, 2), "data_ptr": lambda: address, "numel": lambda: 0, **other})


def gathered(gradients, forms=None, plain=None, strided="strided", wire_of=None):
    forms = forms or [form() for _ in gradients]
    wire_of = wire_of or (lambda *_: (tensor(9), "context"))
    return Gatherer(gradients, forms, torch.Tensor, plain, strided, wire_of).gather()


def test_gradients_are_sent_from_where_they_are():
    gradients = [dirty_gradient(tensor(0)), dirty_gradient(tensor(1, is_contiguous=lambda: False))]
    sent = gathered(gradients, [form(), form(is_contiguous=False)])
    assert list(sent) == [(gradient, gradient.param.grad, gradient.param.grad, None) for gradient in gradients]
    assert (len(sent), sent[1][0], sent.absent) == (2, gradients[1], [])
    assert all(gradient.dirty for gradient in gradients)  # nothing is sent yet
    with pytest.raises(IndexError):
        sent[2]


@pytest.mark.parametrize(
    ("wrong", "form_of_it"),
    [
        ({"dtype": "half"}, form()),
        ({"layout": "sparse"}, form()),
        ({"device": "there"}, form()),
        ({"is_contiguous": lambda: False}, form()),
        ({"is_neg": lambda: True}, form()),
        ({"stride": lambda: (2, 1)}, form(is_contiguous=False)),
        ({}, form(dtype_in_place=None)),
    ],
)
def test_what_cannot_be_sent_from_where_it_is_torch_makes_anew(wrong, form_of_it):
    gradients = [dirty_gradient(tensor(0)), dirty_gradient(tensor(1, **wrong))]
    wire, asked = tensor(5), []

    def wire_of(*arguments):
        asked.append(arguments)
        return wire, "context"

    sent = gathered(gradients, [form(), form_of_it], wire_of=wire_of)
    grad = gradients[1].param.grad
    assert (sent[1], sent.absent, asked) == ((gradients[1], grad, wire, "context"), [], [(gradients[1], form_of_it, grad)])


def test_members_without_a_gradient_are_absent():
    gradients = [dirty_gradient(tensor(0)), dirty_gradient(None), dirty_gradient(tensor(2))]
    gradients[1].reduced_part, gradients[2].dirty = "reduced before it was reset", False
    sent = gathered(gradients)
    assert sent.absent == [1, 2]
    assert [item[1:] for item in sent][1:] == [(None, sent[1][2], "context"), (None, sent[2][2], "context")]
    assert (gradients[1].dirty, gradients[1].reduced_part) == (False, None)
    with pytest.raises(RuntimeError):
        Gatherer(["a gradient"], [form()], torch.Tensor, None, "strided", print)


def test_only_what_is_not_there_has_to_be_landed():
    gradients = [dirty_gradient(tensor(number)) for number in range(7)]
    forms = [form() for _ in gradients]
    forms[1] = form(dtype_in_place=None)
    gradients[2].dirty = gradients[3].dirty = False
    sent = gathered(gradients, forms)
    gradients[4].reduced_part, gradients[5].sparse_dim, gradients[6].param.grad = "a part of it", 1, tensor(6)
    assert sent.to_store(0, [1, 2, 0, 1, 2, 2, 2]) == [1, 3, 4, 5, 6]
    assert [gradient.filled for gradient in gradients] == [True] + 6 * [False]
    gradients[0].filled = False
    assert sent.to_store(3, [1, 2, 0, 1, 2, 2, 2]) == [3, 4, 5, 6]
    assert not gradients[0].filled
    assert sent.to_store(0, []) == []  # it was not submitted
    assert sent.to_store(0, [HvdliteError("it failed"), 2, 0, 0, 2, 2, 2])[0] == 0


def test_a_gradient_fits_only_on_the_device_of_the_plan():
    from hvdlite.torch.parameter_gradient import WireForm

    forms = [WireForm(torch.ones(3), torch.float32, None)]
    for grad, is_found in ((torch.ones(3), True), (torch.ones(3, device="meta"), False)):
        sent = gathered([dirty_gradient(grad)], forms, strided=torch.strided)
        assert (sent[0][2] is grad) == is_found


def freed_tensor():
    tensor = torch.ones(2, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


def test_a_gradient_whose_storage_was_freed_is_refused():
    from hvdlite.torch.parameter_gradient import WireForm

    wire_form = WireForm(torch.ones(2, 3), torch.float32, None)
    with pytest.raises(UnsupportedError, match="this torch tensor has no memory of its own"):
        wire_form.encode(freed_tensor())
    assert torch.equal(wire_form.encode(torch.ones(3, 2).T)[0], torch.ones(2, 3))


GRADIENTS = {
    "a matrix": (torch.ones(2, 3), True),
    "empty": (torch.ones(0), True),
    "with an offset": (torch.ones(4)[1:], True),
    "in another order": (torch.ones(2, 3).T, False),
    "of another dtype": (torch.ones(2, 3, dtype=torch.float64), False),
    "sparse": (torch.ones(2, 3).to_sparse(), False),
    "on another device": (torch.ones(2, 3, device="meta"), False),
    "with gaps": (torch.ones(4)[::2], False),
    "without memory": (freed_tensor(), False),
    "negative": (torch.ones(1, dtype=torch.complex64).conj().imag, False),
    "of a subclass": (torch.nn.Parameter(torch.ones(3)), True),  # asked as where torch has no functions for native code
}


@pytest.mark.parametrize("kind", GRADIENTS)
@pytest.mark.parametrize("told", [pytest.param("natively", marks=needs_exchange), "by attributes"])
def test_a_gradient_is_sent_from_where_it_is(kind, told):
    grad, is_found = GRADIENTS[kind]
    gradient = dirty_gradient(grad)
    plain = plain_of(torch.ones(1)) if told == "natively" else None
    assert (plain is not None) == (told == "natively")
    forms = [form(dtype_in_place=torch.float32, memory=torch.device("cpu"))]
    sent = gathered([gradient], forms, plain, torch.strided)
    assert (sent[0][2] is grad) == is_found
    if not is_found:
        return
    before = grad.detach().clone()
    driver, handles = Launching([gradient]), [7]
    with engines(1) as (alone,):
        group = alone.engine.prepare([(ALLREDUCE, "g", FLOAT32, grad.shape, 0, 0, SUM, 0, 0, 1.0, 2.0)])
        launch(alone.engine, driver, 0, group, sent, False, (), 0.0, False, handles)
        assert (gradient.dirty, len(handles), handles[0]) == (False, 2, 7)
        assert outcomes_of(alone.engine, handles[1:]) == [1]
    assert torch.equal(grad.detach(), 2 * before)
    grad.data.copy_(before)


def test_what_is_refused_is_not_sent():
    grads = [np.ones(3, np.float32), np.ones(3, np.float32)]
    gradients = [dirty_gradient(tensor(grad.ctypes.data)) for grad in grads]
    sent = gathered(gradients)
    driver, handles = Launching(gradients), []
    with engines(1) as (alone,):
        group = alone.engine.prepare([(ALLREDUCE, "one", FLOAT32, (3,), 0, 0)])
        with pytest.raises(InvalidArgumentError, match="has 1 requests, but 2 addresses"):
            launch(alone.engine, driver, 0, group, sent, False, (), 0.0, False, handles)
        with pytest.raises(TypeError, match="incompatible function arguments"):
            launch(alone.engine, "a driver", 0, group, sent, False, (), 0.0, False, handles)
        assert alone.engine.counters()["submitted"] == 0
    assert handles == []
    assert all(gradient.dirty for gradient in gradients)
    driver.reduce(False)
    assert driver.launches == 1


def test_what_is_launched_is_not_launched_again():
    grad = np.ones(3, np.float32)
    gradients = [dirty_gradient(tensor(grad.ctypes.data))]
    sent = gathered(gradients)
    driver, handles = Launching(gradients), []
    with engines(1) as (alone,):
        group = alone.engine.prepare([(ALLREDUCE, "one", FLOAT32, (3,), 0, 0)])
        launch(alone.engine, driver, 0, group, sent, False, (), 0.0, False, handles)
        assert outcomes_of(alone.engine, handles) == [1]
    driver.reduce(False)
    assert driver.launches == 0


def test_a_bucket_that_nobody_uses_goes():
    """Although its gatherer, the gradients and what was sent refer to each other."""
    gradient, grad = dirty_gradient(None), Gradient()
    vars(grad).update(vars(tensor(0)))
    gradient.param.grad = grad
    grad.gatherer = Gatherer([gradient], [form()], torch.Tensor, None, "strided", print)
    grad.sent = grad.gatherer.gather()
    gone = weakref.ref(grad)
    del gradient, grad
    gc.collect()
    assert gone() is None
