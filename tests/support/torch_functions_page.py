"""Runs the cases of torch_functions.py and writes the tables of docs/torch_distributed.md (`make torch-distributed`).

tests/adapters/torch/test_distributed_functions.py runs the cases on hvdlite in every run, and compares the outcomes with the
page.
"""

import json
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

from support.job import find_mpirun
from support.pages import DOCS, text_between, write_between
from support.torch_functions import CASES, outcome_of

__all__ = ["BACKENDS", "MARKS", "PAGE", "WRAPPERS", "cells_of_page"]

PAGE = DOCS / "torch_distributed.md"
MARKS = ("<!-- begin: written by `make torch-distributed` -->", "<!-- end -->")
BACKENDS = ("hvdlite", "gloo")

_TRAINING, _PARALLEL, _MESSAGES = "test_distributed_training.py", "test_parallelisms.py", "test_distributed_messages.py"
# The parts of torch that use these functions: the name, a note, and the test that compares it with one process or with gloo.
WRAPPERS = [
    ("DistributedDataParallel", "", f"{_TRAINING}::test_ddp_trains_as_on_gloo"),
    ("DDP with sparse gradients", "", f"{_TRAINING}::test_ddp_with_sparse_gradients"),
    ("DDP: your own hook", "", f"{_TRAINING}::test_a_comm_hook"),
    ("DDP: fp16_compress_hook", "", f"{_PARALLEL}::test_a_hook_that_compresses_to_float16"),
    ("DDP: PowerSGD", "works; gloo crashes with several buckets", f"{_PARALLEL}::test_power_sgd_with_several_buckets"),
    ("Join", "", f"{_TRAINING}::test_ddp_with_unequal_numbers_of_batches"),
    ("ZeroRedundancyOptimizer", "", f"{_TRAINING}::test_sharded_optimizer"),
    ("fully_shard (FSDP2)", "", f"{_PARALLEL}::test_fully_sharded"),
    ("FullyShardedDataParallel (FSDP1)", "", f"{_TRAINING}::test_fully_sharded_parameters_of_the_first_kind"),
    ("HSDP", "", f"{_PARALLEL}::test_sharded_in_groups_and_replicated_between_them"),
    ("DTensor, every change of placement", "", f"{_PARALLEL}::test_every_change_of_placement"),
    ("DeviceMesh of two dimensions", "", f"{_PARALLEL}::test_every_change_of_placement_on_a_mesh_of_two_dimensions"),
    ("tensor parallelism", "", f"{_PARALLEL}::test_parallel_over_tensors"),
    ("tensor and data parallelism", "", f"{_PARALLEL}::test_parallel_over_tensors_and_data"),
    ("pipelining: GPipe, 1F1B", "", f"{_MESSAGES}::test_a_pipeline_has_the_losses_and_gradients_of_one_process"),
    ("pipelines and data parallelism", "", f"{_MESSAGES}::test_pipelines_with_different_data"),
    (
        "checkpoints (DCP)",
        "works; a checkpoint of all ranks can be read by fewer ranks",
        f"{_PARALLEL}::test_a_checkpoint_of_all_ranks_is_read_by_half_of_them",
    ),
]


def cells_of_page() -> list[tuple[str, ...]]:
    """The cells of the rows of both tables between the page's marks."""
    lines = [line for line in text_between(PAGE, MARKS).splitlines() if line.startswith("| ") and not line.startswith("| name")]
    return [tuple(cell.strip() for cell in line.strip().strip("|").split(" | ")) for line in lines]


def _on_a_rank(backend: str, folder: str) -> None:
    """The program of each rank: runs all cases, and writes their outcomes into a file on rank 0."""
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    import hvdlite.torch.distributed  # noqa: F401 - registers the backend

    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()
    options = {} if backend == "hvdlite" else {"init_method": f"file://{folder}/store", "rank": rank, "world_size": size}
    dist.init_process_group(backend, timeout=timedelta(seconds=10), **options)
    found = {}
    for name, case in CASES.items():
        outcomes = MPI.COMM_WORLD.allgather(outcome_of(case, torch, dist, rank, size))
        found[name] = next((each for each in outcomes if each != "works"), "works")
    if rank == 0:
        Path(folder, backend).write_text(json.dumps({"torch": torch.__version__, "found": found}))
    MPI.COMM_WORLD.Barrier()
    dist.destroy_process_group()


def _write() -> None:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for backend in BACKENDS:
            rank = [sys.executable, "-m", "support.torch_functions_page", backend, folder]
            subprocess.run([find_mpirun(), "--oversubscribe", "-n", "2", *rank], check=True, timeout=600)
            found[backend] = json.loads(Path(folder, backend).read_text())
    lines = [f"torch {found['hvdlite']['torch']}, two ranks, CPU:", "", "| name | hvdlite | gloo | |", "|---|---|---|---|"]
    for name, case in CASES.items():
        cells = [f"`{name}`", *(found[backend]["found"][name].replace("|", "/") for backend in BACKENDS), case.more]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| name of a wrapper | | test in tests/adapters/torch |", "|---|---|---|"]
    lines += [f"| {name} | {more or 'works'} | `{test}` |" for name, more, test in WRAPPERS]
    write_between(PAGE, MARKS, "\n".join(lines))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _on_a_rank(*sys.argv[1:])
    else:
        _write()
