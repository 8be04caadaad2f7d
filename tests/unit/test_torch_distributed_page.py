"""docs/torch_distributed.md has a row for each function of torch.distributed, and the tests that it names exist."""

import ast
import inspect
import re
from pathlib import Path

import pytest
from support.torch_functions import CASES
from support.torch_functions_page import BACKENDS, WRAPPERS, cells_of_page

ADAPTERS = Path(__file__).parents[1] / "adapters" / "torch"
# What asks, or starts and ends torch.distributed itself.
OTHERS = {
    "destroy_process_group", "get_backend", "get_backend_config", "get_debug_level", "get_default_backend_for_device",
    "get_node_local_rank", "get_pg_count", "init_process_group", "is_backend_available", "is_gloo_available",
    "is_mpi_available", "is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available", "record_comm",
    "supports_complex",
}  # fmt: skip


def rows():
    return cells_of_page()


def test_the_rows_are_the_cases():
    assert [row[0] for row in rows()] == [*(f"`{name}`" for name in CASES), *(name for name, _, _ in WRAPPERS)]
    assert [row[-1] for row in rows()[len(CASES) :]] == [f"`{test}`" for _, _, test in WRAPPERS]


def test_every_case_was_run_and_none_broke():
    for _, *cells in rows()[: len(CASES)]:
        for cell in cells[: len(BACKENDS)]:
            assert cell == "works" or cell.startswith(("refused by torch (", "refused by hvdlite", "not in")), cell


def test_every_function_of_torch_is_there():
    c10d = pytest.importorskip("torch.distributed.distributed_c10d")
    functions = {name for name in c10d.__all__ if inspect.isfunction(getattr(c10d, name, None))}
    known = {word for name in CASES for word in re.findall(r"\w+", name)}
    assert functions - known - OTHERS == set()


@pytest.mark.parametrize("test", sorted(test for _, _, test in WRAPPERS))
def test_the_tests_of_wrappers_exist(test):
    file, name = test.split("::")
    tree = ast.parse((ADAPTERS / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
