"""A signal handler may raise between any two things that Python does: whatever is in flight then is not lost.

Each test makes a call again and again, and has it raise at the first place in hvdlite's code where Python looks for signals,
then at the second, and so on until the call comes to its end. What counts is that every operation that the engine has accepted
is waited for by somebody, who holds its memory until then.
"""

import pytest
from support.job import run_job

PRELUDE = """
import dis, itertools, os, sys
import numpy as np
import hvdlite as hvd
from hvdlite.runtime import RUNTIME

HOME = os.path.dirname(hvd.__file__)
# Python looks for signals at the beginning of a function, after calls and where a loop begins again.
LOOKS_AFTER = ("RESUME", "CALL", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
hvd.init()
engine = RUNTIME.engine

def is_interrupted(call, place, has_begun=lambda: True):
    # Raises at this place of those, once it has begun, where Python looks for signals. False if there are no more than that.
    left = place
    before = {}
    def count(frame, event, argument):
        nonlocal left
        if event == "opcode":
            last, before[id(frame)] = before[id(frame)], frame.f_lasti
            if (last is None or dis.opname[frame.f_code.co_code[last]].startswith(LOOKS_AFTER)) and has_begun():
                if left == 0:
                    raise KeyboardInterrupt
                left -= 1
        return count
    def enter(frame, event, argument):
        if not frame.f_code.co_filename.startswith(HOME):
            return None
        frame.f_trace_opcodes = True
        before[id(frame)] = None
        return count
    sys.settrace(enter)
    try:
        call()
        return False
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)

def runs(*functions):
    # Is the place, of which `has_begun` asks, in one of hvdlite's functions of these names, or in what it calls?
    frame = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_name in functions and frame.f_code.co_filename.startswith(HOME):
            return True
        frame = frame.f_back
    return False
"""


@pytest.mark.parametrize(
    "call",
    [
        "hvd.allreduce_async(array, name=name)",
        "hvd.allreduce_async_(array, name=name)",
        "hvd.allreduce_async([1.0, 2.0], name=name)",
        "hvd.allgather_async(array, name=name)",
        "hvd.grouped_allreduce_async([array] * 3, name=name)",
    ],
)
def test_an_interrupted_call_loses_nothing(call):
    result = run_job(
        PRELUDE
        + f"""
array = np.ones(3)
name = "imports what the call needs"
{call}
outcomes = []
while True:
    name = f"x{{len(outcomes)}}"
    while engine.dropped_in_flight:
        hvd.allreduce(1.0)  # whoever submits lets go of what has ended
    before = engine.counters()["submitted"]
    outcomes.append(None)
    def run():
        outcomes[-1] = {call}
    went_on = is_interrupted(run, len(outcomes) - 1)
    submitted = engine.counters()["submitted"] - before
    if not went_on:
        break
    assert outcomes[-1] is None and engine.dropped_in_flight == submitted, (len(outcomes), engine.dropped_in_flight, submitted)
print(f"interrupted at {{len(outcomes) - 1}} places", flush=True)
outcomes[-1].synchronize()
while engine.dropped_in_flight:
    hvd.allreduce(1.0)
""",
        1,
    )
    assert result.returncode == 0, result.report()
    assert int(result.stdout[0].split()[2]) > 3, result.report()


def test_an_interrupted_wait_can_be_made_again():
    """Whatever it is waited for, and wherever that was interrupted: what `synchronize` returns in the end is all there."""
    result = run_job(
        PRELUDE
        + """
array = np.arange(3.0)
kinds = {
    "allreduce": (lambda name: hvd.allreduce_async(array, name=name), lambda output: output),
    "in place": (lambda name: hvd.allreduce_async_(array.copy(), name=name), lambda output: output),
    "list": (lambda name: hvd.allreduce_async(array.tolist(), name=name), lambda output: output),
    "group": (lambda name: hvd.grouped_allreduce_async([array] * 3, name=name), lambda output: output[2]),
    "allgather": (lambda name: hvd.allgather_async(array, name=name), lambda output: output[3:]),
    "alltoall": (lambda name: hvd.alltoall_async(np.tile(array, 2), name=name), lambda output: output[0][3:]),
}
for kind, (start, part) in kinds.items():
    for place in itertools.count():
        handle = start(f"{kind}.{place}")
        outputs = []
        went_on = is_interrupted(lambda: outputs.append(handle.synchronize()), place)
        assert went_on == (not outputs)
        output = part(handle.synchronize() if went_on else outputs[0])
        assert np.array_equal(output, array), (kind, place, output)
        assert handle.poll() and handle.synchronize() is None
        if not hvd.allreduce(float(went_on), op=hvd.Max, name="again"):
            break
    print("interrupted", kind, "at", place, "places", flush=True)
""",
        2,
    )
    assert result.returncode == 0, result.report()
    assert all(int(line.split()[-2]) > 1 for line in result.stdout[0].splitlines()), result.report()


@pytest.mark.parametrize("accumulates", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_interrupted_pass_loses_no_gradient(accumulates):
    """Of two ranks one is interrupted. What its pass has not sent its optimizer's step sends: both get the same, and the next
    pass is right again. Where it accumulates it adds to gradients that are reduced already, some of which only the other rank
    has a part in, one is sparse, and the others travel compressed. A pass that is interrupted before it has begun is none.
    """
    pytest.importorskip("torch")
    result = run_job(
        PRELUDE
        + f"accumulates = {accumulates}"
        + """
import torch
import hvdlite.torch as hvd
from hvdlite.torch.reducer import owner_of

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Embedding(5, 4, sparse=accumulates), torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
other = torch.nn.Linear(3, 2)
params = [*model.named_parameters(), *((f"other.{name}", param) for name, param in other.named_parameters())]
compression = hvd.Compression.fp16 if accumulates else hvd.Compression.none
optimizer = torch.optim.SGD([param for _, param in params], lr=0.0)
optimizer = hvd.DistributedOptimizer(optimizer, params, op=hvd.Sum, compression=compression)
inputs = torch.tensor([0, 3, 3 + hvd.rank()])

def one_pass():
    loss = model(inputs).sum()
    if hvd.rank() == 1 or not accumulates:
        loss = loss + other(torch.tensor([0.5, 1.0, 2.0])).sum()
    loss.backward()

def gradients():
    return torch.cat([param.grad.to_dense().flatten() for _, param in params])

reducer = owner_of(params[0][1])
def has_begun():
    return not accumulates or reducer.running or reducer.unsettled

one_pass()
wanted = gradients()
for count in itertools.count():
    optimizer.zero_grad()
    if accumulates:
        one_pass()
    went_on = is_interrupted(one_pass, count, has_begun) if hvd.rank() == 0 else one_pass()
    optimizer.step()
    first, second = hvd.allgather(gradients()[None])
    assert torch.equal(first, second), (count, first - second)
    optimizer.zero_grad()
    one_pass()
    assert torch.equal(gradients(), wanted), (count, "next")
    if not hvd.broadcast_object(went_on):
        break
print(f"interrupted at {count} places", flush=True)
""",
        2,
    )
    assert result.returncode == 0, result.report()
    assert int(result.stdout[0].split()[2]) > 50, result.report()


def test_an_interrupted_round_of_a_codec_is_sent_once():
    """Of two ranks one is interrupted while its bucket is launched, or while it sends the second round."""
    pytest.importorskip("torch")
    result = run_job(
        PRELUDE
        + """
import torch
import hvdlite.torch as hvd

params = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((8, 6), (6, 4), (3,))]
optimizer = torch.optim.SGD(params, lr=0.0)
optimizer = hvd.DistributedOptimizer(optimizer, compression=hvd.Compression.powersgd(start_step=0, min_compression=1.0))

factors = [1.0 + hvd.rank() + torch.arange(param.numel()).view(param.shape) for param in params]

def one_pass():
    sum((param * factor).sum() for param, factor in zip(params, factors)).backward()

optimizer.zero_grad()
one_pass()
for count in itertools.count():
    optimizer.zero_grad()
    if hvd.rank() == 0:
        went_on = is_interrupted(one_pass, count, lambda: runs("launch", "_send"))
    else:
        went_on = one_pass()
    optimizer.step()
    mine = torch.cat([param.grad.flatten() for param in params])
    first, second = hvd.allgather(mine[None])
    assert torch.equal(first, second) and bool(first.any()), (count, first - second)
    if not hvd.broadcast_object(went_on):
        break
print(f"interrupted at {count} places", flush=True)
""",
        2,
    )
    assert result.returncode == 0, result.report()
    assert int(result.stdout[0].split()[2]) > 30, result.report()


def test_an_interrupted_comparison_of_the_start_is_sent_once():
    """Of two ranks one is interrupted while it sends what the ranks compare in their first steps."""
    pytest.importorskip("torch")
    result = run_job(
        PRELUDE
        + """
import torch
import hvdlite.torch as hvd

model = torch.nn.Linear(4, 2)
hvd.broadcast_parameters(model.state_dict(), 0)

def one_pass():
    model(torch.full((3, 4), 1.0 + hvd.rank())).sum().backward()

for count in itertools.count():
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), model.named_parameters())
    one_pass()  # makes the plan
    optimizer.step()
    optimizer.zero_grad()
    went_on = is_interrupted(one_pass, count, lambda: runs("_begin_check")) if hvd.rank() == 0 else one_pass()
    optimizer.step()
    optimizer.zero_grad()
    one_pass()
    optimizer.step()
    first, second = hvd.allgather(model.weight.grad[None])
    assert torch.equal(first, second), (count, first - second)
    if not hvd.broadcast_object(went_on):
        break
print(f"interrupted at {count} places", flush=True)
""",
        2,
    )
    assert result.returncode == 0, result.report()
    assert int(result.stdout[0].split()[2]) > 30, result.report()
