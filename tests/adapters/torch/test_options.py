"""The arguments of DistributedOptimizer, alone and together, beside one process on the whole batch."""

import inspect

import pytest
import torch
from reference import STEPS, Pair, assert_close, assert_same_bits, grads_of, mse, network, sgd


def test_arguments_are_horovods_in_its_order(hvd):
    parameters = inspect.signature(hvd.DistributedOptimizer).parameters.values()
    positional = {p.name: p.default for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD}
    assert list(positional.items()) == [
        ("optimizer", inspect.Parameter.empty),
        ("named_parameters", None),
        ("compression", hvd.Compression.none),
        ("backward_passes_per_step", 1),
        ("op", hvd.Average),
        ("gradient_predivide_factor", 1.0),
        ("num_groups", 0),
        ("groups", None),
        ("sparse_as_dense", False),
        ("process_set", hvd.global_process_set),
    ]


# --- groups ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def launches(monkeypatch):
    """The buckets that are launched: lists of names."""
    from hvdlite.torch import in_flight

    log = []
    launch = in_flight.DenseBucket.launch

    def watched(self, *arguments):
        log.append([gradient.name.split(".", 1)[1] for gradient in self.gradients])
        return launch(self, *arguments)

    monkeypatch.setattr(in_flight.DenseBucket, "launch", watched)
    return log


def train(pair, steps=STEPS, passes=1, factor=1.0):
    for step in range(steps):
        pair.zero()
        for number in range(passes):
            part, whole = pair.parts(10 * step + number, next(pair.model.parameters()).dtype)
            mse(pair.model, *part).backward()
            (mse(pair.twin, *whole) * factor).backward()
        pair.check_grads()
        pair.step()
    pair.check_weights()


NAMES = ["0.weight", "0.bias", "2.weight", "2.bias", "4.weight", "4.bias"]
CHOICES = {
    "one": (lambda model: 1, [NAMES[::-1]]),
    "three": (lambda model: 3, [NAMES[:3:-1], NAMES[3:1:-1], NAMES[1::-1]]),
    "more than there are": (lambda model: 100, [[name] for name in NAMES[::-1]]),
    "lists": (lambda model: [[*model[0].parameters()], [*model[2].parameters(), *model[4].parameters()]], None),
    "iterators": (lambda model: [layer.parameters() for layer in model], None),  # some layers have none
    "across": (lambda model: ((model[0].weight, model[4].bias), (model[2].bias,)), None),
    "none": (lambda model: [], None),
}


@pytest.mark.parametrize("choice", CHOICES)
def test_groups_travel_together(hvd, choice, launches):
    choose, expected = CHOICES[choice]

    def make(params):
        return sgd(params)

    model = network()
    groups = choose(model)
    pair = Pair(hvd, make, lambda: network(), groups=groups if isinstance(groups, int) else None)
    if not isinstance(groups, int):
        pair.model = model
        pair.optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), groups=groups)
    train(pair)
    if expected is not None:
        assert sorted(launches[-len(expected) :]) == sorted(expected)
    else:
        named = {id(param): name for name, param in model.named_parameters()}
        last = launches[-len({tuple(sorted(names)) for names in launches}) :]
        for members in choose(model):
            names = {named[id(param)] for param in members}
            assert not names or names in map(set, last)


def test_num_groups_is_the_old_name_of_groups(hvd, launches):
    with pytest.warns(DeprecationWarning, match="`num_groups` has been replaced by `groups`"):
        pair = Pair(hvd, sgd, num_groups=2)
    train(pair, steps=3)
    assert sorted(launches[-2:]) == sorted([NAMES[:2:-1], NAMES[2::-1]])
    with pytest.warns(DeprecationWarning, match="num_groups"):
        pair = Pair(hvd, sgd, num_groups=2, groups=1)
    train(pair, steps=3)
    assert launches[-1] == NAMES[::-1]


def test_groups_of_several_dtypes(hvd):
    """One group for the user, one buffer for each dtype on the wire."""

    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            self.wide = torch.nn.Linear(6, 5).double()
            self.narrow = torch.nn.Linear(5, 3).float()

        def forward(self, inputs):
            return self.narrow(torch.tanh(self.wide(inputs)).float()).double()

    train(Pair(hvd, sgd, Mixed, tolerance=1e-5, groups=1))


# --- together ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("factor", [0.25, 3.0])
@pytest.mark.parametrize("compressed", [False, True])
def test_predivide_factor_with_everything(hvd, groups, passes, factor, compressed):
    """Horovod ignores it where there are groups."""
    compression = hvd.Compression.fp16 if compressed else hvd.Compression.none
    pair = Pair(
        hvd,
        sgd,
        tolerance=5e-3 if compressed else 1e-11,
        groups=groups,
        backward_passes_per_step=passes,
        gradient_predivide_factor=factor,
        compression=compression,
    )
    train(pair, passes=passes)


def test_a_mean_that_fits_does_not_overflow(hvd):
    """A float16 gradient of 40000 on each rank: the sum would be infinite if it were rounded before it is divided."""
    for factor in (1.0, float(hvd.size())):
        param = torch.nn.Parameter(torch.zeros(3, dtype=torch.float16))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), gradient_predivide_factor=factor)
        (param * torch.tensor(40000.0 + 32 * hvd.rank(), dtype=torch.float16)).sum().backward()
        expected = 40000 + 16 * (hvd.size() - 1)
        assert (param.grad.float() - expected).abs().max() <= 32
        assert_same_bits([param.grad])
        del optimizer


@pytest.mark.parametrize("op", ["Average", "Sum"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("gradient_as_bucket_view", [True, False])
def test_average_aggregated_gradients(hvd, op, compressed, gradient_as_bucket_view):
    """Divided by the number of passes as well, also where that changes; the last step has fewer passes than said."""
    pair = Pair(
        hvd,
        sgd,
        tolerance=5e-3 if compressed else 1e-11,
        op=getattr(hvd, op),
        backward_passes_per_step=4,
        average_aggregated_gradients=True,
        gradient_as_bucket_view=gradient_as_bucket_view,
        compression=hvd.Compression.bf16 if compressed and op == "Sum" else hvd.Compression.fp16 if compressed else None,
    )
    if compressed and op == "Sum":
        pair.tolerance = 5e-2
    factor = hvd.size() if op == "Sum" else 1
    train(pair, steps=STEPS // 2, passes=4, factor=factor / 4)
    pair.optimizer.set_backward_passes_per_step(2)
    train(pair, steps=STEPS // 2, passes=2, factor=factor / 2)
    pair.zero()
    part, whole = pair.parts(5000)
    mse(pair.model, *part).backward()
    (mse(pair.twin, *whole) * factor / 2).backward()
    pair.step()
    pair.check_grads()


@pytest.mark.parametrize("as_dense", [False, True])
def test_average_aggregated_sparse_gradients(hvd, as_dense):
    tables = [torch.nn.Embedding(7, 3, sparse=True).double() for _ in range(2)]
    with torch.no_grad():
        for table in tables:
            table.weight.copy_(torch.arange(21.0).reshape(7, 3))
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(tables[0].parameters(), lr=0.1),
        backward_passes_per_step=2,
        average_aggregated_gradients=True,
        sparse_as_dense=as_dense,
    )
    twin_optimizer = torch.optim.SGD(tables[1].parameters(), lr=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        twin_optimizer.zero_grad()
        words = torch.randint(0, 7, (2, hvd.size(), 3), generator=torch.Generator().manual_seed(step))
        for number in range(2):
            tables[0](words[number, hvd.rank()]).square().mean().backward()
            (tables[1](words[number]).square().mean() / 2).backward()
        assert_close(grads_of(tables[0]), grads_of(tables[1]))
        optimizer.step()
        twin_optimizer.step()
    assert_close([tables[0].weight], [tables[1].weight])
    assert_same_bits([tables[0].weight])


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_sparse_rows_travel_as_they_are(hvd, compression):
    """Compression is for dense gradients, as in Horovod, and with groups the dense ones still travel together."""

    class Words(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(4)
            self.table = torch.nn.Embedding(9, 4, sparse=True).double()
            self.head = torch.nn.Linear(4, 2).double()

        def forward(self, words):
            return self.head(torch.tanh(self.table(words).sum(1)))

    model, twin = Words(), Words()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), compression=getattr(hvd.Compression, compression), groups=1
    )
    words = torch.randint(0, 9, (hvd.size(), 2, 3), generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        optimizer.zero_grad()
        twin.zero_grad()
        model(words[hvd.rank()]).square().mean().backward()
        twin(words.flatten(0, 1)).square().mean().backward()
    assert_close([model.table.weight.grad], [twin.table.weight.grad])
    assert not torch.equal(model.head.weight.grad, twin.head.weight.grad)
    assert_close([model.head.weight.grad], [twin.head.weight.grad], 0.05)


# --- old scripts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("allreduce_batch", [1, 3])
def test_the_loop_of_horovods_examples(hvd, allreduce_batch):
    """Sub-batches, the last of them smaller, the loss divided by their number, backward_passes_per_step of them a step."""
    rows = 7
    pair = Pair(hvd, sgd, backward_passes_per_step=allreduce_batch)
    for step in range(STEPS):
        (data, target), (inputs, targets) = pair.parts(step, rows=rows)
        size = -(-rows // allreduce_batch)
        pair.zero()
        for begin in range(0, rows, size):
            batch, wanted = data[begin : begin + size], target[begin : begin + size]
            (mse(pair.model, batch, wanted) * (len(batch) / rows)).backward()
        mse(pair.twin, inputs, targets).backward()
        pair.step()
    pair.check_weights()


@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("skipping", [True, False])
def test_synchronize_by_hand(hvd, passes, skipping):
    """Horovod warns without skip_synchronize, and reduces twice; here there is nothing left to reduce."""
    pair = Pair(hvd, sgd, op=hvd.Sum, backward_passes_per_step=passes)
    for step in range(STEPS):
        pair.zero()
        for number in range(passes):
            pair.backward(10 * step + number)
        pair.optimizer.synchronize()
        for model, divisor in ((pair.model, hvd.size()), (pair.twin, 1)):
            for param in model.parameters():
                param.grad.div_(divisor)
        if skipping:
            with pair.optimizer.skip_synchronize():
                pair.optimizer.step()
        else:
            pair.optimizer.step()
        pair.twin_optimizer.step()
    pair.check_weights()


def test_skip_synchronize_skips(hvd):
    """Gradients that were kept back are not reduced by a step inside."""
    pair = Pair(hvd, sgd)
    part, _ = pair.parts(0)
    with pair.optimizer.no_sync():
        mse(pair.model, *part).backward()
    mine = [grad.clone() for grad in grads_of(pair.model)]
    with pair.optimizer.skip_synchronize():
        pair.optimizer.step()
    assert all(torch.equal(*both) for both in zip(mine, grads_of(pair.model), strict=True))


@pytest.mark.parametrize("set_to_none", [True, False, None])
def test_zero_grad_between_backward_and_step(hvd, set_to_none):
    """Horovod refuses this (AssertionError); it is a step that is not taken, on all ranks."""
    pair = Pair(hvd, sgd)
    for step in range(STEPS):
        pair.backward(step)
        if step % 3:
            pair.check_grads()
            pair.step()
        pair.zero(**({} if set_to_none is None else {"set_to_none": set_to_none}))
    pair.check_weights()
