"""What a compiled program says about its collectives, and the errors that come back through XLA."""

import pytest

from hvdlite.compression import Compression
from hvdlite.errors import InvalidArgumentError, MismatchError, NotInitializedError
from hvdlite.requests import Kind, Sum
from hvdlite.xla import TensorGroup, describe, failure_in

PAIR = [("float32", (2, 3)), ("bfloat16", ())]


def test_the_text_of_groups():
    groups = [
        TensorGroup(Kind.ALLREDUCE, "sums", PAIR, op=Sum, prescale=1 / 3, process_set=2),
        TensorGroup(Kind.ALLREDUCE, "coded", PAIR[:1], codec=Compression.int8(block=128).fields),
        TensorGroup(Kind.BROADCAST, "start", PAIR[:1], names=["a weight"], root=4),
    ]
    assert describe(groups).splitlines() == [
        "0 1 0 2 0.3333333333333333 1.0 0 0 0 0 2 allreduce.sums",
        "10 2 2 3 allreduce.sums_1of2",
        "9 0 allreduce.sums_2of2",
        "0 1 0 0 1.0 1.0 0 1 0 128 1 allreduce.coded",
        "10 2 2 3 allreduce.coded_1of1",
        "2 1 4 0 1.0 1.0 0 0 0 0 1 broadcast.start",
        "10 2 2 3 broadcast.a weight",
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "needs a name"),
        ({"names": ["a", "b\nc"]}, "on one line"),
        ({"names": ["a"]}, "2 tensors, but 1 names"),
        ({"tensors": [("float8_e4m3fn", ())]}, "float8_e4m3fn cannot be sent"),
    ],
)
def test_what_cannot_be_said(changes, said):
    with pytest.raises(InvalidArgumentError, match=said):
        describe([TensorGroup(**{"kind": Kind.ALLREDUCE, "name": "t", "tensors": PAIR, **changes})])


@pytest.mark.parametrize(
    "text",
    [
        "FAILED_PRECONDITION: hvdlite error 2: allreduce of 't[0]': dtype differs\n----------\nFor simplicity, JAX has ...",
        "INTERNAL: Generated function failed: hvdlite error 2: allreduce of 't[0]': dtype differs",
        "hvdlite error 2: allreduce of 't[0]': dtype differs [Op:__inference_step_93]",
        "hvdlite error 2: allreduce of 't[0]': dtype differs\n\t [[{{node call}}]] [Op:__inference_step_93]",
    ],
)
def test_the_error_in_the_text_of_anothers(text):
    failure = failure_in(RuntimeError(text))
    assert type(failure) is MismatchError
    assert str(failure) == "allreduce of 't[0]': dtype differs"


def test_other_errors():
    assert type(failure_in(ValueError("hvdlite error 6: not now"))) is NotInitializedError
    assert failure_in(RuntimeError("INTERNAL: something else")) is None
