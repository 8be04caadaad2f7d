"""The native module's own rules: who owns memory, how waits are interrupted, how arguments and errors cross."""

import gc
import os
import re
import threading

import numpy as np
import pytest
from support.limits import DEADLINE, interrupted
from support.rest import outlasts
from support.testing import native
from support.thread_ranks import ALLGATHER, ALLREDUCE, SUM, engines, in_threads, run_ranks, run_request

from hvdlite import _engine, errors
from hvdlite.dtypes import DType


@pytest.fixture
def alone():
    """The engine of a job of one."""
    with engines(1) as ranks:
        yield ranks[0].engine


def allgather(engine, name, array, dtype=DType.FLOAT32):
    return run_request(engine, (ALLGATHER, name, int(dtype), array.shape, array, 0))


def test_dtype_names_are_those_of_the_package():
    assert native.dtype_names() == [dtype.label for dtype in DType]


@pytest.mark.parametrize("dtype", list(DType), ids=lambda d: d.label)
def test_output_has_the_bytes_of_its_dtype(alone, dtype):
    array = np.arange(6 * dtype.itemsize, dtype=np.uint8).reshape(3, 2, dtype.itemsize)
    result = run_request(alone, (ALLGATHER, "a", int(dtype), (3, 2), array, 0))
    assert result.shape == (3, 2)
    assert bytes(result.data) == array.tobytes()


def test_data_outlives_result_and_engine_and_is_writable():
    with engines(1) as ranks:
        result = allgather(ranks[0].engine, "a", np.arange(1000, dtype=np.float32))
        data = np.frombuffer(result.data, np.float32)
        assert result.data is result.data
    del ranks, result
    gc.collect()
    data += 1
    assert (data == np.arange(1, 1001)).all()


def test_empty_output(alone):
    result = allgather(alone, "a", np.zeros((0, 3), np.float32))
    assert result.shape == (0, 3)
    view = result.data
    assert (view.nbytes, view.readonly) == (0, False)
    assert np.frombuffer(view, np.float32).size == 0


def test_results_without_data_give_an_empty_view(alone):
    value = np.ones(3, np.float32)
    result = run_request(alone, (ALLREDUCE, "a", DType.FLOAT32, value.shape, value, value))
    assert (result.contributors, result.received_splits, result.data.nbytes) == (1, (), 0)


def test_results_are_asked_for_after_the_end_and_stay_the_same():
    values = [np.ones(3, np.float32) for _ in range(2)]
    with engines(2) as ranks:
        work = ranks[0].engine.submit([(ALLREDUCE, "a", DType.FLOAT32, (3,), values[0], values[0])])
        with pytest.raises(ValueError, match="not ended yet"):
            work.results()
        run_request(ranks[1].engine, (ALLREDUCE, "a", DType.FLOAT32, (3,), values[1], values[1]))
        work.wait()
        (result,) = work.results()
        assert work.result() is result
        assert work.results() is work.results()


def test_a_wait_with_a_limit_leaves_the_handle():
    values = [np.full(4, rank + 1, np.float32) for rank in range(2)]

    def submit(rank):
        data = values[rank.rank].ctypes.data
        return rank.engine.submit([(ALLREDUCE, "late", DType.FLOAT32, (4,), data, data, SUM)])

    with engines(2) as ranks:
        handle = submit(ranks[0])
        for limit in (0.0, 0.25):  # in less than a slice, and in several
            with pytest.raises(TimeoutError):
                handle.result(limit)

        def late():
            assert outlasts(ranks[0].engine, 0.25)  # several slices again
            submit(ranks[1]).result()

        thread = threading.Thread(target=late)
        thread.start()
        handle.result(limit=DEADLINE)
        thread.join()
    assert all((array == 3).all() for array in values)


def test_a_work_tells_its_operations_apart():
    values = [np.full(4, rank + 1, np.float32) for rank in range(2)]

    def body(rank):
        array = values[rank.rank]
        work = rank.engine.submit(
            [(ALLREDUCE, "bad", DType.FLOAT32, (4 - rank.rank,), array, array, SUM), (ALLGATHER, "good", 0, (2,), array, 0)]
        )
        work.wait()
        error, result = work.results()
        assert (result.contributors, result.shape) == (2, (4,))
        assert isinstance(error, errors.MismatchError)
        assert "'bad'" in str(error)
        with pytest.raises(ValueError, match="of one operation"):
            work.result()

    run_ranks(2, body)


def test_ctrl_c_interrupts_a_wait_and_leaves_the_handle():
    values = [np.full(4, rank + 1, np.float32) for rank in range(2)]

    def submit(rank):
        data = values[rank.rank].ctypes.data
        return rank.engine.submit([(ALLREDUCE, "late", DType.FLOAT32, (4,), data, data, SUM)])

    with engines(2) as ranks:
        handle = submit(ranks[0])
        interrupted(handle.result)
        other = submit(ranks[1])
        in_threads(ranks, lambda rank: (other if rank.rank else handle).result())
    assert (values[0] == 3).all()
    assert (values[1] == 3).all()


def test_trailing_items_of_a_request_may_be_missing(alone):
    first, second = np.ones(3, np.float32), np.full((2, 2), 2, np.float64)
    plain = (ALLREDUCE, "a", DType.FLOAT32, (3,), first.ctypes.data, first.ctypes.data)
    full = (ALLREDUCE, "b", DType.FLOAT64, [2, 2], second.ctypes.data, second.ctypes.data, SUM, 0, 0, 2.0, 0.25)
    alone.submit([plain, (*full, "", 0, 0, (), -1, 0, 0)], wake=False).wait()
    assert (first == 1).all()
    assert (second == 1).all()


def test_many_requests_are_submitted_together_or_not_at_all(alone):
    value = np.ones(3, np.float32)
    good = (ALLREDUCE, "a", DType.FLOAT32, (3,), value.ctypes.data, value.ctypes.data)
    with pytest.raises(errors.InvalidArgumentError):
        alone.submit([good, (ALLREDUCE, "b", 99, (3,), value.ctypes.data, value.ctypes.data)])
    run_request(alone, good)  # the name is free


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ((ALLREDUCE, "a"), "lacks its argument 'dtype'"),
        ((ALLREDUCE, b"a", 10, (), 0, 0), "has a bad 'name': b'a'"),
        ((ALLREDUCE, "a", 10, 3, 0, 0), "sequence of integers"),
        ((ALLREDUCE, "a", 10, ("x",), 0, 0), "cannot be interpreted as an integer"),
        (
            (ALLREDUCE, "a", 10, (), 0, 0, 1, 0, 0, 1.0, 1.0, "", 0, 0, (), -1, 0, 0, 0, 0, 0, 1.0, 0, 0, 0, True),
            "too many arguments",
        ),
        ([ALLREDUCE, "a", 10, (), 0, 0], "must be a tuple"),
    ],
)
def test_malformed_requests_are_type_errors(alone, request_, text):
    with pytest.raises(TypeError, match=text):
        alone.submit([request_])


@pytest.mark.parametrize("name", ["allreduce.a\0b", "allreduce.\udcfc"])
def test_names_that_the_engine_cannot_have_are_refused(alone, name):
    with pytest.raises(errors.InvalidArgumentError, match=re.escape(f"the name {name!r} has a null character or a surrogate")):
        alone.submit([(ALLREDUCE, name, 10, (), 0, 0)])


def test_texts_need_not_be_utf_8(tmp_path):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/M\xfcller")
    os.mkdir(folder)
    engine = _engine.Engine.create_inproc(_engine.Fabric(1), 0, {"flight_recorder_folder": folder, "log_level": 5})
    engine.start_timeline(f"{folder}/t.json", 1 << 20)
    engine.stop_timeline()
    assert os.path.exists(f"{folder}/t.json")
    for text in (f"in {folder}", "\ud800"):
        engine.answer_question(text)
    engine.shutdown()


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"fusion_treshold": 1}, "'fusion_treshold' is no knob of the engine"),
        ({"struct_size": 1}, "'struct_size' is no knob"),
        ({"fusion_threshold": 1.5}, "fusion_threshold must be a 64-bit integer, not 1.5"),
        ({"log_level": 1 << 40}, "log_level must be a 32-bit integer"),
        ({"spin_us": "fast"}, "spin_us must be a number, not 'fast'"),
        ({"kernel_isa": 3}, "kernel_isa must be a string, not 3"),
    ],
)
def test_bad_config_names_the_key(config, text):
    with pytest.raises(ValueError, match=text):
        _engine.Engine.create_inproc(_engine.Fabric(1), 0, config)


def test_errors_are_runtime_errors_until_classes_are_installed():
    try:
        _engine.set_error_classes({})
        with pytest.raises(RuntimeError) as plain:
            _engine.Fabric(-1)
    finally:
        errors.install(_engine.set_error_classes)
    with pytest.raises(errors.InvalidArgumentError) as classed:
        _engine.Fabric(-1)
    assert type(plain.value) is RuntimeError
    assert str(plain.value) == str(classed.value) != ""


def test_simulate_checks_the_number_of_addresses():
    step = native.SimulatedStep(ALLREDUCE, "ring", [0], [0], [0])
    with pytest.raises(ValueError, match="one output address for each part of each rank"):
        native.simulate(2, [step])
