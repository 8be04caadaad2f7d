"""Every name that programs import from Horovod is there, and the small functions do what they say."""

import importlib
import operator
import queue
import threading

import pytest

import hvdlite
from hvdlite.errors import HorovodInternalError, HostsUpdatedInterrupt, NotInitializedError

# What Horovod 0.28.1 offers.
BASICS = """
    init shutdown is_initialized start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank
    mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built
"""
PROCESS_SETS = "ProcessSet global_process_set add_process_set remove_process_set"
COLLECTIVES = """
    allreduce allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_
    grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async
    broadcast broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async
    grouped_reducescatter grouped_reducescatter_async join barrier poll synchronize Average Sum Adasum Min Max Product
    HorovodInternalError
"""
FUNCTIONS = "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters"
NAMES = {
    "torch": f"{BASICS} {PROCESS_SETS} {COLLECTIVES} {FUNCTIONS} Compression DistributedOptimizer SyncBatchNorm elastic",
    "torch.mpi_ops": f"{BASICS} {PROCESS_SETS} {COLLECTIVES} Compression is_homogeneous _basics",
    "torch.functions": FUNCTIONS,
    "torch.optimizer": "DistributedOptimizer _DistributedOptimizer",
    "torch.sync_batch_norm": "SyncBatchNorm",
    "torch.elastic": "run ElasticSampler TorchState",
    "torch.elastic.sampler": "ElasticSampler",
    "torch.elastic.state": "TorchState",
    "torch.compression": "Compressor NoneCompressor FP16Compressor Compression",
    "horovod": "run __version__",
    "horovod.runner": "run",
    "horovod.runner.common.util.env": "get_env_rank_and_size",
    "horovod.runner.util.threads": "execute_function_multithreaded in_thread on_event",
    "horovod.common.basics": "HorovodBasics",
    "horovod.common.elastic": "State ObjectState run_fn",
    "horovod.common.process_sets": PROCESS_SETS,
    "horovod.common.exceptions": (
        "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError get_version_mismatch_message"
    ),
    "horovod.common.util": """
        env _cache extension_available gpu_available mpi_built gloo_built nccl_built ddl_built ccl_built split_list
        num_rank_is_power_2 is_iterable is_version_greater_equal_than check_installed_version check_extension get_ext_suffix
        get_average_backwards_compatibility_fun
    """,
    "horovod.data": "BaseDataLoader AsyncDataLoaderMixin",
    "horovod.data.data_loader_base": "BaseDataLoader AsyncDataLoaderMixin",
}


@pytest.mark.parametrize("module", NAMES)
def test_every_name_of_horovod_is_there(module):
    if module.startswith("torch"):
        pytest.importorskip("torch")
    there = dir(importlib.import_module(f"hvdlite.{module}"))
    assert not set(NAMES[module].split()) - set(there)


def test_the_names_of_the_door_are_listed():
    door = pytest.importorskip("torch") and importlib.import_module("hvdlite.torch")
    assert set(NAMES["torch"].split()) <= set(door.__all__)


def test_collectives_of_mpi_ops_have_gradients():
    pytest.importorskip("torch")
    from hvdlite.torch import mpi_ops, ops

    for name in ops.__all__:
        assert getattr(mpi_ops, name) is getattr(ops, name)


def test_the_basics_as_one_object():
    from hvdlite.horovod.common.basics import HorovodBasics

    basics = HorovodBasics("/usr/lib/horovod/torch/__init__.py", "mpi_lib_v2")
    for name in [*BASICS.split(), "is_homogeneous"]:
        assert getattr(basics, name) is getattr(hvdlite, name)
    assert (basics.Average, basics.Sum, basics.Adasum, basics.Min, basics.Max, basics.Product) == tuple(range(6))
    with pytest.raises(NotInitializedError):
        basics._get_process_set_ids_and_ranks()


@pytest.mark.parametrize("call", [lambda: hvdlite.start_timeline("/tmp/t.json", mark_cycles=True), hvdlite.stop_timeline])
def test_a_timeline_needs_init(call):
    with pytest.raises(ValueError, match="Horovod has not been initialized"):
        call()


def test_exceptions_of_horovod():
    from hvdlite.horovod.common import exceptions

    assert exceptions.HorovodInternalError is HorovodInternalError
    assert exceptions.HostsUpdatedInterrupt is HostsUpdatedInterrupt
    error = exceptions.HorovodVersionMismatchError("torch", "2.0", "1.0")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "2.0", "1.0")
    assert str(error) == exceptions.get_version_mismatch_message("torch", "2.0", "1.0")


# --- horovod.common.util --------------------------------------------------------------------------------------------------


@pytest.fixture
def util():
    return importlib.import_module("hvdlite.horovod.common.util")


def test_split_list(util):
    assert util.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert util.split_list(["a"], 2) == [["a"], []]
    assert util.split_list([], 2) == [[], []]


def test_powers_of_two(util):
    assert [n for n in range(-2, 20) if util.num_rank_is_power_2(n)] == [1, 2, 4, 8, 16]


def test_what_is_iterable(util):
    assert util.is_iterable([])
    assert util.is_iterable("text")
    assert not util.is_iterable(3)


@pytest.mark.parametrize(
    ("version", "target", "expected"),
    [
        ("2.1.0", "2.1.0", True),
        ("2.1.0+cu121", "2.1.0", True),
        ("2.10.0", "2.9.1", True),
        ("2.9.1", "2.10.0", False),
        ("2.1", "2.1.0", True),
        ("2.1.0rc2", "2.1.0", False),
        ("2.16.0-rc0", "2.16.0", False),  # as TensorFlow writes it
        ("2.1.0.post1", "2.1.0", True),
        ("2.1.0-alpha.1", "2.1.0", False),
        ("2.1.0-cpu", "2.1.0", True),
        ("2.1.0.dev20230901", "2.1.0", False),
        ("2.1.1rc2", "2.1.0", True),
        ("2.1.0.1", "2.1.0", True),
    ],
)
def test_versions(util, version, target, expected):
    assert util.is_version_greater_equal_than(version, target) is expected


@pytest.mark.parametrize(("version", "target"), [(2.1, "2.1.0"), ("2.1.0", (2, 1, 0)), ("2.1.0", "2.1"), ("new", "2.1.0")])
def test_what_is_no_version(util, version, target):
    with pytest.raises(ValueError, match="version"):
        util.is_version_greater_equal_than(version, target)


def test_extensions(util):
    pytest.importorskip("torch")
    assert util.extension_available("torch") is True
    assert util.extension_available("mxnet", verbose=True) is False
    util.check_extension("horovod.torch", "HOROVOD_WITH_PYTORCH", __file__, "mpi_lib_v2")
    with pytest.raises(ImportError, match=r"horovod\.mxnet: hvdlite has no door"):
        util.check_extension("horovod.mxnet", "HOROVOD_WITH_MXNET", __file__, "mpi_lib")
    util.check_installed_version("pytorch", "0.1", None)


def test_gpus(util):
    torch = pytest.importorskip("torch")
    assert util.gpu_available("torch") is torch.cuda.is_available()
    assert util.gpu_available("mxnet") is False


def test_what_is_built(util):
    for name in ("mpi_built", "gloo_built", "nccl_built", "ddl_built", "ccl_built"):
        assert getattr(util, name)(verbose=True) == getattr(hvdlite, name)()


def test_the_rule_of_op_and_average(util):
    resolve = util.get_average_backwards_compatibility_fun(hvdlite)
    assert resolve(None, None) == hvdlite.Average
    assert resolve(op=hvdlite.Max, average=None) == hvdlite.Max
    with pytest.warns(DeprecationWarning, match="replaced with `op`") as caught:
        assert resolve(None, False) == hvdlite.Sum
    assert caught[0].filename == __file__
    with pytest.raises(ValueError, match="supersedes average"):
        resolve(hvdlite.Sum, True)
    with pytest.raises(ValueError, match="average='loss' is neither True nor False; write name='loss'"):
        resolve(None, "loss")


def test_cache(util):
    calls = []
    cached = util._cache(lambda *args, **kwargs: calls.append((args, kwargs)))
    for _ in range(2):
        cached(1, verbose=True)
    assert calls == [((1,), {"verbose": True})]


def test_the_version_is_three_numbers():
    version = importlib.import_module("hvdlite.horovod").__version__
    assert tuple(map(int, version.split("."))) == (0, 28, 1)
    assert importlib.import_module("hvdlite.horovod.common.util").is_version_greater_equal_than(version, "0.28.0")


def test_names_that_are_refused_say_what_to_use():
    door = pytest.importorskip("torch") and importlib.import_module("hvdlite.torch")
    for name, remedy in {"_check_has_gpu": "torch.cuda.is_available", "check_extension": "horovod.common.util"}.items():
        assert not hasattr(door, name)
        with pytest.raises(AttributeError, match=f"hvdlite.torch does not offer {name}: .*{remedy}") as caught:
            getattr(door, name)
        assert isinstance(caught.value, NotImplementedError)


def test_an_optimizer_that_derives_from_horovods_is_refused():
    optimizer = pytest.importorskip("torch") and importlib.import_module("hvdlite.torch.optimizer")
    with pytest.raises(NotImplementedError, match="Scheduled derives from Horovod's _DistributedOptimizer"):
        type("Scheduled", (optimizer._DistributedOptimizer,), {})(None)


# --- horovod.runner.util.threads --------------------------------------------------------------------------------------------


@pytest.fixture
def threads():
    return importlib.import_module("hvdlite.horovod.runner.util.threads")


def test_a_function_in_a_thread(threads):
    found = []
    threads.in_thread(found.append, (3,), name="adder", daemon=False).join()
    assert found == [3]
    assert threads.in_thread(lambda: 1 / 0, silent=True).join() is None
    with pytest.raises(ValueError, match=r"in_thread: args must be a tuple, got list; pass one argument as \(argument,\)"):
        threads.in_thread(found.append, [3])


def test_a_function_on_an_event(threads):
    event, stop, found = threading.Event(), threading.Event(), []
    waiting = threads.on_event(event, found.append, (4,))
    stopped = threads.on_event(threading.Event(), found.append, (5,), stop=stop, check_stop_interval_s=0.001, daemon=False)
    late = threads.on_event(event, found.append, (6,), stop=stop, check_stop_interval_s=0.001)
    stop.set()
    stopped.join()
    late.join()
    event.set()
    waiting.join()
    assert found == [4]
    for wrong in (
        lambda: threads.on_event(None, found.append),
        lambda: threads.on_event(event, found.append, [1]),
        lambda: threads.on_event(event, found.append, daemon=False),
    ):
        with pytest.raises(ValueError, match="on_event: "):
            wrong()


def test_a_function_in_many_threads(threads):
    arguments = [[number, number + 1] for number in range(9)]
    for at_once in (1, 4, 1000):
        found = threads.execute_function_multithreaded(operator.mul, arguments, max_concurrent_executions=at_once)
        assert found == {number: number * (number + 1) for number in range(9)}
    assert threads.execute_function_multithreaded(operator.mul, []) == {}
    with pytest.raises(ZeroDivisionError):
        threads.execute_function_multithreaded(operator.truediv, [[1, 2], [1, 0]])
    done = queue.SimpleQueue()
    assert threads.execute_function_multithreaded(done.put, [[1], [2], [3]], False, 2) is None
    assert sorted(done.get() for _ in range(3)) == [1, 2, 3]


def test_a_failed_call_does_not_end_the_others(threads, monkeypatch):
    told, done = queue.SimpleQueue(), queue.SimpleQueue()
    monkeypatch.setattr(threading, "excepthook", lambda failure: told.put(failure.exc_type))
    for at_once in (1, 0):
        threads.execute_function_multithreaded(lambda number: done.put(1 / number), [[0], [1], [2]], False, at_once)
        assert [done.get(timeout=60) for _ in range(2)] == [1.0, 0.5]
        assert told.get(timeout=60) is ZeroDivisionError
