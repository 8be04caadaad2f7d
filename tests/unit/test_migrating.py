"""docs/migrating.md names everything that horovod.torch offers, and what it says is here is here."""

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text()

NAMES = """
    elastic Compression allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters allreduce
    allreduce_async allreduce_ allreduce_async_ grouped_allreduce grouped_allreduce_async grouped_allreduce_
    grouped_allreduce_async_ sparse_allreduce_async allgather allgather_async grouped_allgather grouped_allgather_async
    broadcast broadcast_async broadcast_ broadcast_async_ alltoall alltoall_async reducescatter reducescatter_async
    grouped_reducescatter grouped_reducescatter_async join barrier poll synchronize init shutdown is_initialized
    start_timeline stop_timeline size local_size cross_size rank local_rank cross_rank mpi_threads_supported mpi_enabled
    mpi_built gloo_enabled gloo_built nccl_built ddl_built ccl_built cuda_built rocm_built ProcessSet global_process_set
    add_process_set remove_process_set Average Sum Adasum Min Max Product HorovodInternalError DistributedOptimizer
    SyncBatchNorm is_homogeneous
"""


def rows():
    """(name, verdict, remark) of every name in the tables."""
    for names, verdict, remark in re.findall(r"^\| (`[^|]*`) \| (same|better|not offered) \| ?([^|]*)\|$", PAGE, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", names):
            yield name, verdict, remark.strip()


def test_every_name_of_horovod_is_in_a_table_once():
    named = [name.split(".")[0] for name, _, _ in rows()]
    assert set(named) == set(NAMES.split())
    full = [name for name, _, _ in rows()]
    assert len(full) == len(set(full))


def test_a_difference_is_explained():
    assert not [name for name, verdict, remark in rows() if verdict != "same" and not remark]


@pytest.mark.parametrize("name", [name for name, verdict, _ in rows() if verdict != "not offered"])
def test_what_is_said_to_be_here_is_here(name):
    found = pytest.importorskip("hvdlite.torch")
    for part in name.split("."):
        found = getattr(found, part)
    assert found is not None
