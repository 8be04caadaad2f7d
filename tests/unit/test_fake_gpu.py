"""The fake GPUs do what is said of them: they find what a real GPU would not forgive."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from ctypes import byref, c_float, c_ulonglong, c_void_p
from pathlib import Path

import numpy as np
import pytest
from support.fake_gpu import LIBRARIES, DriverError, LeakCheck, environment, fake_gpus, missing
from support.native import folder

__all__ = ["fake_gpus"]

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 25)

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

CHILD = """
import ctypes, sys
import numpy as np
from support.fake_gpu import FakeGpus
gpus = FakeGpus()
"""


def child(program, **settings):
    """Runs a program with `gpus`, the fake GPUs of its process."""
    return subprocess.run(
        [sys.executable, "-c", CHILD + program],
        env={
            **os.environ,
            **environment(**settings),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{os.environ.get('PYTHONPATH', '')}",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def exported(library):
    path = Path(str(folder())) / LIBRARIES[library]
    return ctypes.CDLL(str(path))


@pytest.mark.parametrize(("library", "header"), [("cuda", "cuda_abi.h"), ("nccl", "nccl_abi.h"), ("nvrtc", "nvrtc_abi.h")])
def test_every_function_of_the_interface_is_there(library, header):
    names = re.findall(r'"((?:cu|nccl|nvrtc)[A-Z]\w+)"', (ROOT / "csrc" / "device" / header).read_text())
    assert len(names) > 10
    assert [name for name in names if not hasattr(exported(library), name)] == []


# --- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("access", ["ctypes.string_at(array.ptr, 4)", "ctypes.memset(array.ptr, 0, 4)"])
def test_the_host_cannot_touch_device_memory(access):
    run = child(f"array = gpus.array(np.ones(4, np.float32))\nprint('made', flush=True)\n{access}\nprint('survived')")
    assert "made" in run.stdout
    assert "survived" not in run.stdout
    # A sanitizer turns the signal into a report and an exit of its own.
    assert run.returncode == -signal.SIGSEGV or "SEGV" in run.stderr


def test_fresh_memory_holds_no_numbers(fake_gpus):
    assert np.isnan(fake_gpus.empty(100, np.float32).numpy()).all()
    assert np.isnan(fake_gpus.empty(100, np.float16).numpy()).all()


def test_data_goes_there_and_back(fake_gpus):
    values = np.random.default_rng(3).normal(size=(7, 13, 5))
    first, second = fake_gpus.array(values, 0), fake_gpus.array(-values, 1)
    assert first.numpy().tobytes() == values.tobytes()
    assert second.numpy().tobytes() == (-values).tobytes()
    assert first.ptr % 256 == 0
    assert first.__cuda_array_interface__["data"] == (first.ptr, False)


def test_a_copy_that_ends_beyond_an_allocation_is_refused(fake_gpus):
    array, stream = fake_gpus.empty(1000, np.uint8), fake_gpus.stream()
    host = np.zeros(2000, np.uint8)
    with fake_gpus.on(0), pytest.raises(DriverError) as caught:
        fake_gpus.call("cuMemcpyAsync", array.ptr, host.ctypes.data, 1001, stream.handle)
    assert caught.value.code == 1


@pytest.mark.parametrize("offset", [-1, 1000])
def test_a_kernel_that_writes_beside_an_allocation_is_found(fake_gpus, capfd, offset):
    array, stream = fake_gpus.array(np.zeros(1000, np.uint8)), fake_gpus.stream()
    fake_gpus.set(delay=0)
    if os.environ.get("ASAN_OPTIONS"):
        pytest.skip("the address sanitizer ends the process at such a write")
    fake_gpus.kernel("fake_store")(0, stream, 1, c_ulonglong(array.ptr + offset), ctypes.c_ubyte(7))
    with pytest.raises(DriverError) as caught:
        stream.synchronize()
    assert caught.value.code == 700
    assert "fake_store" in capfd.readouterr().err
    with pytest.raises(DriverError):  # the context is lost, for all that comes
        fake_gpus.empty(1, np.uint8)


def test_memory_that_was_freed_is_no_memory(fake_gpus):
    array = fake_gpus.array(np.zeros(10, np.uint8))
    address = array.ptr
    array.free()
    with fake_gpus.on(0), pytest.raises(DriverError):
        fake_gpus.call("cuMemsetD8Async", address, 1, 10, None)


def test_freeing_waits_for_the_work_before(fake_gpus):
    array, result, stream = fake_gpus.array(np.ones(10, np.float32)), fake_gpus.empty(10, np.float32), fake_gpus.stream()
    stream.busy(0.05)
    result.copy(array, stream)
    array.free()
    assert result.numpy(stream).tolist() == [1.0] * 10


def test_a_gpu_has_only_so_much_memory(fake_gpus):
    fake_gpus.set(memory_mb=1)
    kept = fake_gpus.empty(1 << 19, np.uint8)
    with pytest.raises(DriverError) as caught:
        fake_gpus.empty((1 << 19) + 1, np.uint8)
    assert caught.value.code == 2
    kept.free()
    fake_gpus.empty(1 << 20, np.uint8)


def test_whose_memory_an_address_is(fake_gpus):
    array, pinned, ordinary = fake_gpus.empty(10, np.uint8, 1), fake_gpus.pinned(np.zeros(10)), np.zeros(10)
    number = ctypes.c_int(-1)
    cuda = fake_gpus.cuda
    assert cuda.cuPointerGetAttribute(byref(number), 9, c_ulonglong(array.ptr + 9)) == 0
    assert number.value == 1
    kinds = []
    for address in (array.ptr, pinned.ctypes.data):
        assert cuda.cuPointerGetAttribute(byref(number), 2, c_ulonglong(address)) == 0
        kinds.append(number.value)
    assert kinds == [2, 1]
    assert cuda.cuPointerGetAttribute(byref(number), 2, c_ulonglong(ordinary.ctypes.data)) == 1


# --- order -------------------------------------------------------------------------------------------------------------


def produce_and_consume(gpus, order):
    """One stream computes, another copies the result."""
    producer, consumer = gpus.stream(), gpus.stream()
    values, result = gpus.array(np.zeros(10, np.float32)), gpus.array(np.zeros(10, np.float32))
    with gpus.held(producer, consumer):
        gpus.add(values, 1.0, producer)
        gpus.add(values, 2.0, producer)
        if order:
            consumer.wait(producer)
        result.copy(values, consumer)
    return bool((result.numpy(consumer) == 3).all())


def outcomes(body):
    """body(gpus) for each of many seeds."""
    results = []
    for seed in SEEDS:
        with LeakCheck() as gpus:
            gpus.set(seed=seed)
            results.append(body(gpus))
            gpus.idle()
    return results


def test_a_missing_event_is_found_and_a_present_one_is_enough():
    assert not all(outcomes(lambda gpus: produce_and_consume(gpus, order=False)))
    assert all(outcomes(lambda gpus: produce_and_consume(gpus, order=True)))


def overwrite_early(gpus, pinned, synchronize):
    source = gpus.pinned(np.ones(100)) if pinned else np.ones(100)
    array, stream = gpus.empty(100, np.float64), gpus.stream()
    with gpus.held(stream):
        array.write(source, stream)
        if not synchronize:
            source[...] = 2
    stream.synchronize()
    source[...] = 2
    return bool((array.numpy(stream) == 1).all())


def test_page_locked_memory_is_read_when_the_stream_gets_there_and_other_memory_at_once():
    assert not all(outcomes(lambda gpus: overwrite_early(gpus, pinned=True, synchronize=False)))
    assert all(outcomes(lambda gpus: overwrite_early(gpus, pinned=True, synchronize=True)))
    assert all(outcomes(lambda gpus: overwrite_early(gpus, pinned=False, synchronize=False)))


def after_the_default_stream(gpus, blocking):
    values, result = gpus.array(np.zeros(10, np.float32)), gpus.empty(10, np.float32)
    stream = gpus.stream(blocking=blocking)
    with gpus.held(stream, None):
        gpus.add(values, 1.0)
        gpus.add(values, 1.0)
        result.copy(values, stream)
    return bool((result.numpy(stream) == 2).all())


def before_the_default_stream(gpus, blocking):
    values, result = gpus.array(np.zeros(10, np.float32)), gpus.empty(10, np.float32)
    stream = gpus.stream(blocking=blocking)
    with gpus.held(stream, None):
        gpus.add(values, 1.0, stream)
        gpus.add(values, 1.0, stream)
        result.copy(values)
    return bool((result.numpy() == 2).all())


@pytest.mark.parametrize("body", [after_the_default_stream, before_the_default_stream])
def test_only_blocking_streams_are_in_order_with_the_default_stream(body):
    assert all(outcomes(lambda gpus: body(gpus, blocking=True)))
    assert not all(outcomes(lambda gpus: body(gpus, blocking=False)))


def test_a_wait_is_for_the_record_of_its_time(fake_gpus):
    first, second = fake_gpus.stream(), fake_gpus.stream()
    event = c_void_p()
    with fake_gpus.on(0):
        fake_gpus.call("cuEventCreate", byref(event), 2)
        fake_gpus.call("cuEventQuery", event)  # never recorded: done
        fake_gpus.call("cuStreamWaitEvent", second.handle, event, 0)
        fake_gpus.call("cuEventRecord", event, first.handle)
        fake_gpus.call("cuEventSynchronize", event)
        fake_gpus.call("cuStreamWaitEvent", second.handle, event, 0)
        first.busy(600)
        fake_gpus.call("cuEventRecord", event, first.handle)
        assert fake_gpus.cuda.cuEventQuery(event) == 600
        second.synchronize()  # would last ten minutes, if it were for the later record
        fake_gpus.call("cuEventDestroy_v2", event)
    fake_gpus.break_down(0)  # or the end of the test waited for it
    assert fake_gpus.cuda.cuEventQuery(event) == 400


def test_an_error_ends_all_waiting(fake_gpus):
    stream = fake_gpus.stream()
    stream.busy(600)
    fake_gpus.break_down(0, 719)
    with pytest.raises(DriverError) as caught:
        stream.synchronize()
    assert caught.value.code == 719


# --- contexts and calls ------------------------------------------------------------------------------------------------


def test_calls_need_a_context_and_the_right_one(fake_gpus):
    array, stream = fake_gpus.array(np.zeros(4, np.float32)), fake_gpus.stream(device=0)
    address = c_ulonglong()
    assert fake_gpus.cuda.cuMemAlloc_v2(byref(address), 4) == 201
    assert fake_gpus.cuda.cuMemsetD8Async(array.ptr, 0, 4, stream.handle) == 201
    with fake_gpus.on(1):
        assert fake_gpus.cuda.cuMemsetD8Async(array.ptr, 0, 4, stream.handle) == 400
    with pytest.raises(DriverError) as caught:
        fake_gpus.kernel("fake_add")(1, stream, 4, c_ulonglong(array.ptr), c_ulonglong(4), c_float(1))
    assert caught.value.code == 400


def test_the_nth_call_fails_and_calls_are_counted(fake_gpus):
    fake_gpus.fail("cuMemAlloc", 2, 2)
    fake_gpus.empty(1, np.uint8)
    with pytest.raises(DriverError) as caught:
        fake_gpus.empty(1, np.uint8)
    assert caught.value.code == 2
    fake_gpus.empty(1, np.uint8)
    assert fake_gpus.calls("cuMemAlloc") == fake_gpus.called()["cuMemAlloc"] == 3


def test_settings_come_with_the_environment():
    program = (
        "count, version = ctypes.c_int(), ctypes.c_int()\n"
        "print(gpus.cuda.cuInit(0), gpus.cuda.cuInit(0), gpus.cuda.cuDeviceGetCount(ctypes.byref(count)))\n"
        "gpus.cuda.cuDriverGetVersion(ctypes.byref(version))\n"
        "print(count.value, version.value)\n"
    )
    run = child(program, gpus=3, driver=12020, fail="cuInit:2:999")
    assert run.stdout.split() == ["0", "999", "0", "3", "12020"], run.stderr


def test_a_captured_stream_says_so_and_disturbing_calls_are_refused(fake_gpus):
    stream, event, status = fake_gpus.stream(blocking=True), c_void_p(), ctypes.c_int(-1)
    cuda, address = fake_gpus.cuda, c_ulonglong()
    with fake_gpus.on(0):
        fake_gpus.call("cuEventCreate", byref(event), 2)
        stream.capture()
        assert cuda.cuStreamIsCapturing(c_void_p(stream.handle), byref(status)) == 0
        assert cuda.cuEventRecord(event, stream.handle) == 900
        assert cuda.cuStreamIsCapturing(None, byref(c_void_p())) == 906
        assert [cuda.cuMemAlloc_v2(byref(address), 4), cuda.cuEventQuery(event)] == [900, 900]
        mode = ctypes.c_int(2)
        assert cuda.cuThreadExchangeStreamCaptureMode(byref(mode)) == 0
        assert [cuda.cuMemAlloc_v2(byref(address), 4), cuda.cuEventQuery(event)] == [0, 0]
        assert cuda.cuThreadExchangeStreamCaptureMode(byref(mode)) == 0
        stream.capture(0)
        fake_gpus.call("cuMemFree_v2", address)
        fake_gpus.call("cuEventDestroy_v2", event)
    assert (status.value, mode.value) == (1, 2)


def leave_something(gpus):
    address, event = c_ulonglong(), c_void_p()
    with gpus.on(0):
        gpus.call("cuMemAlloc_v2", byref(address), 12)
        gpus.call("cuEventCreate", byref(event), 0)


def test_what_is_left_is_reported():
    with pytest.raises(AssertionError, match=r"1 allocations of device memory \(12 bytes\)\n1 events"), LeakCheck() as gpus:
        leave_something(gpus)


def test_only_images_that_the_fake_can_run_are_loaded(fake_gpus):
    module = c_void_p()
    with fake_gpus.on(0):
        assert fake_gpus.cuda.cuModuleLoadData(byref(module), b"rubbish") == 200
        fat = b"\x50\xed\x55\xba" + bytes(60)
        assert fake_gpus.cuda.cuModuleLoadData(byref(module), fat) == 209
        fake_gpus.set(fat_binaries=1)
        fake_gpus.call("cuModuleLoadData", byref(module), fat)
        function = c_void_p()
        assert fake_gpus.cuda.cuModuleGetFunction(byref(function), module, b"no_such_kernel") == 500
        fake_gpus.call("cuModuleUnload", module)


def test_plain_memory_of_the_host_counts_where_a_test_says_so(fake_gpus):
    fake_gpus.set(host_memory=1)
    values, stream = np.ones(300, np.float32), fake_gpus.stream()
    launch = fake_gpus.kernel("fake_add")
    launch(0, stream, 300, c_ulonglong(values.ctypes.data), c_ulonglong(300), c_float(4))
    stream.synchronize()
    assert (values == 5).all()
