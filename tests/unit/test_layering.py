"""Dependencies point down: reads the include and import lines and fails on an upward one."""

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hvdlite"
NATIVE = ROOT / "csrc"

# What each part of the package may import of the package, besides itself.
PURE = {
    "_version",
    "config",
    "dtypes",
    "errors",
    "gpu",
    "knobs",
    "mpi_files",
    "own_folder",
    "ownership",
    "partition",
    "requests",
    "steps",
    "timeline",
    "topology",
    "tuning",
    "view_socket",
    "xla",
}
CORE = {
    "_engine",
    "agreement",
    "arenas",
    "_native",
    "basics",
    "checks",
    "compression",
    "data",
    "failures",
    "job",
    "handles",
    "objects",
    "ops",
    "point_to_point",
    "pool",
    "shrink",
    "process_sets",
    "runtime",
}
CORE |= {
    "auto_compression",
    "autotune",
    "consistency",
    "leaves",
    "link_measurement",
    "link_tuning",
    "live_view",
    "metrics",
    "sampling",
    "start_check",
    "startup",
    "submission",
    "torchrun",
    "usage",
    "watchdog",
}
LIBRARY = PURE | CORE | {"backends"}
DOORS = {"torch", "tensorflow", "jax", "keras"}
ALLOWED = {
    **dict.fromkeys(PURE, PURE),
    "_native": PURE | {"_engine"},
    "backends": PURE,
    **dict.fromkeys(CORE - {"_native"}, LIBRARY),
    "elastic": LIBRARY,
    "torch": LIBRARY | {"__init__", "elastic"},
    "tensorflow": LIBRARY | {"__init__", "elastic"},
    "jax": LIBRARY,
    "keras": LIBRARY | DOORS | {"__init__", "elastic"},
    "horovod": LIBRARY | DOORS | {"__init__", "elastic", "launcher"},
    "launcher": PURE,
    "bench": LIBRARY | DOORS | {"__init__", "launcher"},
    "__init__": LIBRARY | {"launcher"},
    "__main__": PURE | {"launcher"},
}
FRAMEWORKS = {"torch", "tensorflow", "keras", "jax", "cupy", "ml_dtypes"}

# What each folder of the native code may include of the others.
NATIVE_ALLOWED = {
    "base": set(),
    "kernels": {"base"},
    "transport": {"base"},
    "device": {"base", "cuda"},
    "cuda": {"base"},  # for the tests, which compile the kernels for the host
    "collectives": {"base", "kernels", "transport"},
    "engine": {"base", "kernels", "transport", "device", "collectives"},
    "job": {"base", "transport", "engine"},
    "c_api": {"base", "kernels", "transport", "device", "collectives", "engine", "job", "hvdlite"},
    "include": set(),
    "bindings": {"hvdlite"},
}

KNOBS = '"hvdlite/knobs.inc"'  # the list of knobs, of which the struct of every layer is made
COUNTERS = '"hvdlite/counters.inc"'  # the same for the counters

# What each room of csrc/engine may include of the others. What lies beside the rooms, Engine and Cycle, may include all.
ROOMS = {
    "model": set(),
    "observe": {"model"},
    "intake": {"model", "observe"},
    "negotiation": {"model", "observe"},
    "membership": {"model"},
    "point_to_point": {"model", "observe"},
    "execution": {"model", "observe", "intake", "negotiation"},
}
# In execution Execution is above the two kinds of operations, which know nothing of each other.
BELOW_EXECUTION = {"host", "gpu"}

# These files of the bindings know nothing but the standard library.
PURE_NATIVE = {"bindings/python/passes.h": set(), "bindings/python/passes.cc": {"passes.h"}}


@functools.cache
def trees():
    """Of the package's modules, by path."""
    return {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


@functools.cache
def sources():
    """The texts of the native code, by path."""
    return {path: path.read_text() for suffix in ("*.h", "*.cc", "*.cu") for path in sorted(NATIVE.rglob(suffix))}


def sources_of_engine():
    """Those of csrc/engine."""
    return {path: text for path, text in sources().items() if path.is_relative_to(NATIVE / "engine")}


def part_of(path):
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    # hvdlite.tensorflow.keras is the Keras door under the name that Horovod gives it; the TensorFlow door hands over to it.
    return "keras" if parts[:2] == ("tensorflow", "keras") else parts[0]


def imported(tree):
    """Dotted names of everything a module imports, at its top level or inside a function."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide the layer"
            if node.module == "hvdlite":
                yield from (f"hvdlite.{alias.name}" for alias in node.names)
            else:
                yield node.module


def upward(part, names):
    """The imports among these names that a part of the package may not make."""
    allowed = ALLOWED[part] | {part}
    inside = {name.split(".")[1] for name in names if name.startswith("hvdlite.")}
    # `from hvdlite import allreduce` takes a name of the package itself.
    parts = {name if name in ALLOWED or name == "_engine" else "__init__" for name in inside}
    return parts - allowed


def test_imports_point_down():
    wrong = {}
    for path, tree in trees().items():
        part, names = part_of(path), list(imported(tree))
        assert part in ALLOWED, f"{part} has no place among the layers: add it to this test's table"
        wrong[path] = upward(part, names)
        if part not in DOORS | {"bench", "horovod", "torchrun"}:  # torchrun's store is a class of torch
            wrong[path] |= {name.split(".")[0] for name in names} & FRAMEWORKS
    assert not {path: names for path, names in wrong.items() if names}


def test_an_upward_import_is_seen():
    program = "def f():\n    from hvdlite import ops, allreduce\n    import hvdlite.torch.optimizer"
    names = list(imported(ast.parse(program)))
    assert upward("config", names) == {"ops", "torch", "__init__"}
    assert upward("torch", names) == set()
    assert upward("tensorflow", names) == {"torch"}


def test_only_config_reads_the_environment():
    used = {
        (path, f"{node.value.id}.{node.attr}")
        for path, tree in trees().items()
        if part_of(path) not in ("config", "launcher")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert not {use for use in used if use[1] in ("os.environ", "os.getenv", "os.environb", "os.putenv")}


def includes(text):
    return re.findall(r'^\s*#\s*include\s+(["<][^">]+[">])', text, re.MULTILINE)


def may_include(path, include):
    """May a file of csrc/ include this, which has its quotes or brackets?"""
    layer, name = path.relative_to(NATIVE).parts[0], include[1:-1]
    first = name.split("/")[0] if "/" in name else ""
    if include == KNOBS:
        return layer in ("base", "c_api", "include", "bindings")  # all others take knobs from base/config.h
    if include == COUNTERS:
        return layer in ("c_api", "include", "bindings")
    if include.startswith('"') and first in {*NATIVE_ALLOWED, "hvdlite"}:
        return first in NATIVE_ALLOWED[layer] | {layer}
    if name == "mpi.h":
        return layer == "transport" and path.name.startswith("mpi_")
    return layer == "bindings" or not (name == "Python.h" or first == "nanobind")


def test_includes_point_down():
    assert not [(path, name) for path, text in sources().items() for name in includes(text) if not may_include(path, name)]


@pytest.mark.parametrize(
    ("file", "include"),
    [
        ("base/x.h", '"engine/engine.h"'),
        ("engine/x.h", "<mpi.h>"),
        ("transport/tcp.cc", "<mpi.h>"),
        ("c_api/x.cc", "<Python.h>"),
        ("engine/x.cc", "<nanobind/nanobind.h>"),
        ("engine/x.cc", '"hvdlite/knobs.inc"'),
        ("engine/x.cc", '"hvdlite/counters.inc"'),
    ],
)
def test_an_include_of_what_lies_above_is_seen(file, include):
    assert not may_include(NATIVE / file, include)


@pytest.mark.parametrize("name", PURE_NATIVE)
def test_a_pure_machine_includes_nothing_of_python(name):
    found = includes((NATIVE / name).read_text())
    assert {include[1:-1] for include in found if include.startswith('"')} == PURE_NATIVE[name]
    assert not [include for include in found if ".h>" in include]


def upward_in_engine(path, text):
    """The includes of a file of csrc/engine/ that point upward among its rooms; path: its path there."""
    room, *inner = Path(path).parts
    found = []
    for name in re.findall(r'"engine/([^"]+)"', "\n".join(includes(text))):
        there, *inside = Path(name).parts
        in_room = room not in ROOMS or there in ROOMS[room] | {room}
        beside = there == room == "execution" and inner[0] in BELOW_EXECUTION
        if not in_room or (beside and (inside[0] in BELOW_EXECUTION - {inner[0]} or inside[0] == "execution.h")):
            found.append(f"engine/{name}")
    return found


def test_the_rooms_of_the_engine_are_those_of_the_table():
    assert {path.name for path in (NATIVE / "engine").iterdir() if path.is_dir()} == ROOMS.keys()
    assert {path.name for path in (NATIVE / "engine" / "execution").iterdir() if path.is_dir()} == BELOW_EXECUTION


def test_includes_point_down_within_the_engine():
    texts = {path.relative_to(NATIVE / "engine").as_posix(): text for path, text in sources_of_engine().items()}
    assert not {(name, include) for name, text in texts.items() for include in upward_in_engine(name, text)}


def test_an_upward_include_is_seen():
    text = '#include "engine/model/request.h"\n#include "engine/execution/gpu/device_lane.h"\n#include "engine/cycle.h"\n'
    assert (
        upward_in_engine("engine.cc", text) == upward_in_engine("execution/execution.h", '#include "engine/model/text.h"') == []
    )
    assert upward_in_engine("membership/stall.cc", text) == ["engine/execution/gpu/device_lane.h", "engine/cycle.h"]
    assert upward_in_engine("execution/gpu/device_link.cc", text) == ["engine/cycle.h"]
    assert upward_in_engine("execution/host/host_operation.h", text) == ["engine/execution/gpu/device_lane.h", "engine/cycle.h"]
    assert upward_in_engine("execution/gpu/nccl_operation.h", '#include "engine/execution/execution.h"') != []


def matching(pattern, texts):
    """The files with a match."""
    return [path for path, text in texts.items() if re.search(pattern, text)]


def test_the_native_code_reads_no_environment():
    assert not matching(r"\bgetenv\b", sources())


def test_the_native_code_asks_no_locale():
    """csrc/base/text.h says why."""
    streams = {f"<{name}>" for name in ("iostream", "sstream", "fstream", "iomanip", "locale", "regex")}
    assert not [path for path, text in sources().items() if set(includes(text)) & streams]
    assert not matching(r'printf\([^;]*"[^"]*%[-+ #0-9.*l]*[aefgAEFG]', sources())


def test_the_engine_reads_no_clock_but_the_one_it_was_given():
    assert not matching(r"(Clock|steady_clock)::now\(|(?<!\.)\bcoarse_now\(", sources_of_engine())


def test_importing_hvdlite_loads_neither_mpi_nor_framework_nor_engine():
    program = (
        (
            "import sys, hvdlite\n"
            f"assert not {sorted(FRAMEWORKS | {'mpi4py', 'numpy', 'hvdlite._engine'})!r} & sys.modules.keys()\n"
            "hvdlite.allreduce, hvdlite.init, hvdlite.ProcessSet\n"
            f"assert not {sorted(FRAMEWORKS | {'mpi4py', 'hvdlite._engine'})!r} & sys.modules.keys()\n"
        )
        .replace("not [", "not {")
        .replace("] &", "} &")
    )
    subprocess.run([sys.executable, "-c", program], check=True)
