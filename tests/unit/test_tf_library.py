"""The op library by itself: what it is linked to, and what it does where TensorFlow does not behave as expected."""

import ctypes
import re
import subprocess
from pathlib import Path

import pytest
from support import fake_gpu
from support.job import run_job

import hvdlite
from hvdlite.errors import ERRORS

LIBRARY = Path(hvdlite.__file__).with_name("hvdlite_tensorflow.so")
# absl's canonical codes by TensorFlow's names for them.
STATUS = {
    "UNKNOWN": 2,
    "INVALID_ARGUMENT": 3,
    "DEADLINE_EXCEEDED": 4,
    "FAILED_PRECONDITION": 9,
    "ABORTED": 10,
    "UNIMPLEMENTED": 12,
    "INTERNAL": 13,
}


def run(program):
    """What a process of its own that runs this program prints."""
    job = run_job(program, 1)
    assert job.returncode == 0, job.report()
    return job.stdout[0]


def test_no_symbol_of_tensorflow_is_needed_to_load_it():
    """It loads where there is no TensorFlow, and says so."""
    program = f"""
import ctypes, sys
library = ctypes.CDLL({str(LIBRARY)!r})
library.hvdlite_tensorflow_problem.restype = ctypes.c_char_p
assert "tensorflow" not in sys.modules
print(library.hvdlite_tensorflow_problem().decode())
"""
    assert "libtensorflow_framework.so.2 is not loaded in this process" in run(program)


def test_it_is_linked_to_the_core_beside_it_and_to_no_tensorflow():
    dynamic = subprocess.run(["readelf", "--wide", "--dynamic", LIBRARY], capture_output=True, text=True, check=True).stdout
    needed = re.findall(r"NEEDED.*\[(.+)\]", dynamic)
    assert "libhvdlite_core.so" in needed
    assert not [name for name in needed if "tensorflow" in name]
    assert re.search(r"RU?N?PATH.*\[\$ORIGIN\]", dynamic)
    symbols = subprocess.run(["nm", "-D", "--undefined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
    assert not re.findall(r"\bTF_\w+|tensorflow|tsl", symbols)
    assert re.search(r"\bhvdlite_submit\b", symbols)


def test_statuses_are_those_of_the_table():
    library = ctypes.CDLL(str(LIBRARY))
    for code, row in ERRORS.items():
        assert library.hvdlite_tensorflow_status_of(int(code)) == STATUS[row.tensorflow]
    assert library.hvdlite_tensorflow_status_of(1000) == STATUS["INTERNAL"]


OPERATIONS = """
import warnings
import tensorflow as tf
import hvdlite
{before}
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from hvdlite.tensorflow import collective_ops as ops
    hvdlite.init()
    ops.size()
step = tf.function(lambda x: [ops.allreduce(x * i, name=f"t{{i}}") for i in range(9)] + [ops.allgather(x, name="g")])
for _ in range(3):
    assert [float(each[0]) for each in step(tf.ones([2]))] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 1]
for _ in range(2):
    try:
        tf.function(lambda: ops.allreduce(1.0, name="bad", set_id=9))()
    except tf.errors.InvalidArgumentError as error:
        assert "Process set provided does not exist" in str(error)
    else:
        raise AssertionError
assert float(ops.allreduce(tf.constant(2.0))) == 2.0
kinds = {{op.type for op in step.get_concrete_function(tf.ones([2])).graph.get_operations() if op.type.startswith("Hvd")}}
assert all(kind.endswith("Stateful") == {in_order} for kind in kinds), kinds
print([str(each.message) for each in caught if "hvdlite" in str(each.message)])
"""


@pytest.mark.parametrize(
    ("before", "in_order", "said"),
    [
        ("", False, r"^\[\]"),
        (
            "from hvdlite.tensorflow import library; library._doubt = lambda ops, native: 'callbacks are strange'",
            True,
            r"^\['hvdlite: callbacks are strange\. So collectives in graphs run one after the other",
        ),
    ],
    ids=["asynchronous", "fallback"],
)
def test_kernels_work_asynchronously_or_else_one_after_the_other(before, in_order, said):
    pytest.importorskip("tensorflow")
    assert re.search(said, run(OPERATIONS.format(before=before, in_order=in_order)))


STREAMS = """
import os, sys, warnings
import tensorflow as tf
sys.path.insert(0, {tests!r})
from support import fake_tensorflow
import hvdlite
from hvdlite.runtime import RUNTIME
{before}
hvdlite.init()
fake_tensorflow.install(1)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from hvdlite.tensorflow import collective_ops as ops
    with tf.device("/GPU:0"):
        tensor = fake_tensorflow.add(tf.identity([1.0, 2.0]), 2.0, 0.01)
        assert ops.allreduce(tensor, prescale=3.0).numpy().tolist() == [9, 12]
counters = RUNTIME.require().counters()
print("in GPU memory" if counters["nccl_ops"] + counters["staged_ops"] else "in host memory")
print(*(str(each.message) for each in caught if "HVDLITE" in str(each.message)), sep="\\n")
"""
DOUBTS = """
from hvdlite.tensorflow import library
for number in range(fake_tensorflow.LIES):
    fake_tensorflow.lie(number)
    print(number, library._doubt_of_stream(library.load(), "/GPU:0", os.environ["HVDLITE_CUDA_LIBRARY"]))
fake_tensorflow.lie(fake_tensorflow.TRUTH)
fake_tensorflow.WAITS = True
print("idle", library._doubt_of_stream(library.load(), "/GPU:0", os.environ["HVDLITE_CUDA_LIBRARY"]))
"""


def run_on_fake_gpus(monkeypatch, before, after=""):
    pytest.importorskip("tensorflow")
    if fake_gpu.missing():
        pytest.skip(fake_gpu.missing())
    for name, value in {**fake_gpu.environment(gpus=2), "HVDLITE_TENSORFLOW_GPU_STREAMS": "1"}.items():
        monkeypatch.setenv(name, value)
    return run(STREAMS.format(tests=str(Path(__file__).parents[1]), before=before) + after)


def test_the_stream_of_a_gpu_is_tried(monkeypatch):
    """What TensorFlow does not promise: whatever else may be there is found out, without a crash."""
    said = run_on_fake_gpus(monkeypatch, "", DOUBTS).splitlines()
    assert said[:2] == ["in GPU memory", ""]
    nothing = "no stream is where hvdlite expects it"
    wrong = "the stream that hvdlite finds is not the one that TensorFlow uses"
    idle = "the stream that hvdlite finds never has work"
    assert said[2:] == ["0 ", f"1 {wrong}", f"2 {nothing}", f"3 {nothing}", f"4 {nothing}", f"idle {idle}"]


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        (
            "fake_tensorflow.lie(fake_tensorflow.OTHER_STREAM)",
            r"streams of TensorFlow \S+ on \S+GPU:0 fail the test: the stream that hvdlite finds is not the one that \w+ uses",
        ),
        ("fake_tensorflow.BUILT_WITH_CUDA = False", r"this TensorFlow \S+ was built without CUDA"),
    ],
    ids=["another stream", "no CUDA"],
)
def test_without_a_stream_tensors_go_through_host_memory(monkeypatch, before, reason):
    said = run_on_fake_gpus(monkeypatch, before)
    assert re.search(rf"^in host memory\nhvdlite: HVDLITE_TENSORFLOW_GPU_STREAMS is set, but {reason}\. So TensorFlow's", said)
