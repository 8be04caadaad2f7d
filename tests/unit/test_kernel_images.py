"""What stands around the fusion kernels: their image, NVRTC and its cache, lists of tensors; on fake GPUs.

NVIDIA's own compilers need no GPU: where they are installed they compile the kernels here.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from support import fake_gpu
from support.fake_gpu import FakeGpus, fake_gpus  # noqa: F401
from support.fusion import Conversion, convert
from support.limits import SANITIZED

from hvdlite import _engine, config, errors, gpu
from hvdlite.bench.fusion import Fusion, Move
from hvdlite.dtypes import DType

errors.install(_engine.set_error_classes)

ROOT = Path(__file__).parents[2]
NVCC = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
REAL_NVRTC = [path for path in gpu.nvrtc_libraries() if Path(path).is_file()]
# The address sanitizer opens libraries in NVRTC's stead, and so does not find the one that lies beside it.
needs_nvrtc = pytest.mark.skipif(
    not REAL_NVRTC or SANITIZED, reason="no NVRTC here (pip install nvidia-cuda-nvrtc), or the address sanitizer is"
)
NO_BINARY = 209
SAME = (DType.FLOAT32, DType.FLOAT32)


@contextmanager
def opened(**others):
    """The kernels of the first fake GPU."""
    fusion = Fusion(config.Config(fake_gpu.knobs(**others)))
    try:
        yield fusion
    finally:
        fusion.close()


def without_built_in(gpus: FakeGpus) -> None:
    """The driver does not take the built-in image, if there is one."""
    with opened() as fusion:
        if fusion.origin.startswith("built in"):
            gpus.fail("cuModuleLoadData", 1, NO_BINARY)


class Tensors:
    """Float32 tensors on the GPU, one after the other, and a buffer with a gap after each."""

    def __init__(self, fusion: Fusion, number: int, seed: int = 0) -> None:
        draw = np.random.default_rng([number, seed])
        sizes = draw.integers(0, 2000, number).tolist()
        self.fusion = fusion
        self.values = [draw.standard_normal(size).astype(np.float32) for size in sizes]
        starts = np.cumsum([0, *sizes]).tolist()
        self.memory = fusion.memory(4 * starts[-1])
        self.everything = np.concatenate(self.values)
        fusion.copy(self.memory, self.everything.ctypes.data, self.everything.nbytes)
        self.tensors = [self.memory + 4 * start for start in starts[:-1]]
        self.places = [(start + i, size) for i, (start, size) in enumerate(zip(starts, sizes, strict=False))]
        self.elements = starts[-1] + number
        self.buffer = fusion.memory(4 * self.elements)

    def move(self, **others) -> Move:
        source, target = others.pop("types", SAME)
        return Move(self.tensors, self.places, self.buffer, source, target, **others)

    def read(self, address: int, count: int, dtype: type) -> np.ndarray:
        values = np.zeros(count, dtype)
        self.fusion.copy(values.ctypes.data, address, values.nbytes)
        return values


# --- launches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [1, 100, 400])
@pytest.mark.parametrize("seed", [1, 2])
def test_tensors_travel_as_float16_and_back(fake_gpus, number, seed):  # noqa: F811
    """The streams of the fake take their time, in an order that only events decide."""
    fake_gpus.set(seed=seed)
    with opened() as fusion:
        made = Tensors(fusion, number, seed)
        out, back = (DType.FLOAT32, DType.FLOAT16), (DType.FLOAT16, DType.FLOAT32)
        fusion.run(made.move(types=out, factor=0.5))
        packed = made.read(made.buffer, made.elements, np.float16)
        for (offset, count), values in zip(made.places, made.values, strict=True):
            assert packed[offset : offset + count].tobytes() == convert(values, Conversion(*out, 0.5)).tobytes()
        fusion.run(made.move(types=back, factor=2.0, unpack=True))
        wanted = (made.everything * np.float32(0.5)).astype(np.float16).astype(np.float32) * 2
        assert np.array_equal(made.read(made.memory, made.everything.size, np.float32), wanted)


def test_not_finite_values_are_flagged_on_the_gpu(fake_gpus):  # noqa: F811
    with opened() as fusion:
        for number in (150, 250):
            made = Tensors(fusion, number)
            bad = next(i for i, values in enumerate(made.values) if values.size > 10)
            nan = np.array([np.nan], np.float32)
            fusion.copy(made.tensors[bad] + 4 * 7, nan.ctypes.data, 4)
            flags, zeros = fusion.memory(4 * number), np.zeros(number, np.int32)
            fusion.copy(flags, zeros.ctypes.data, zeros.nbytes)
            fusion.run(made.move(nonfinite=flags))
            assert np.flatnonzero(made.read(flags, number, np.int32)).tolist() == [bad]


def test_a_list_of_tensors_is_uploaded_once(fake_gpus):  # noqa: F811
    with opened() as fusion:
        few, many, others = Tensors(fusion, 192), Tensors(fusion, 193), Tensors(fusion, 500)
        fusion.run(few.move(), launches=3)
        assert fusion.uploads == 0
        for _ in range(3):
            fusion.run(many.move(), launches=2)
            fusion.run(others.move())
        assert fusion.uploads == 2
        fusion.run(others.move(factor=2.0))  # a copy's units are bytes, not numbers
        fusion.run(others.move(types=(DType.FLOAT32, DType.BFLOAT16)))
        assert fusion.uploads == 3
        fusion.run(others.move(unpack=True))
        assert fusion.uploads == 4
        fusion.run(Move(others.tensors[1:], others.places[1:], others.buffer, *SAME))
        assert fusion.uploads == 5
        fusion.run(others.move())
        assert fusion.uploads == 5
        count = others.values[0].size
        packed, unpacked = (others.read(place, count, np.uint32) for place in (others.buffer, others.tensors[0]))
        assert np.array_equal(packed, unpacked)


def test_old_lists_make_room_for_new_ones(fake_gpus):  # noqa: F811
    """Each of more lists than are kept; the memory of a list in use is not written to."""
    with opened() as fusion:
        made = Tensors(fusion, 260)
        for first in range(66):
            places = made.places[first : first + 193]
            fusion.run(Move(made.tensors[first : first + 193], places, made.buffer, *SAME))
        assert fusion.uploads == 66
        fusion.run(Move(made.tensors[65 : 65 + 193], made.places[65 : 65 + 193], made.buffer, *SAME))
        assert fusion.uploads == 66
        fusion.run(Move(made.tensors[:193], made.places[:193], made.buffer, *SAME))
        assert fusion.uploads == 67
        packed = made.read(made.buffer, made.elements, np.float32)
        for (offset, count), values in list(zip(made.places, made.values, strict=True))[: 65 + 193]:
            assert np.array_equal(packed[offset : offset + count], values)


def test_a_tensor_between_its_elements_is_copied_but_not_scaled(fake_gpus):  # noqa: F811
    with opened() as fusion:
        tensor, buffer = fusion.memory(100), fusion.memory(100)
        values = np.arange(100, dtype=np.uint8)
        fusion.copy(tensor, values.ctypes.data, 100)
        move = Move([tensor + 2], [(0, 10)], buffer, *SAME)
        fusion.run(move)
        packed = np.zeros(40, np.uint8)
        fusion.copy(packed.ctypes.data, buffer, 40)
        assert np.array_equal(packed, values[2:42])
        with pytest.raises(errors.InvalidArgumentError, match=r"lies at 0x[0-9a-f]+, which is no multiple of the 4 bytes"):
            fusion.run(Move([tensor + 2], [(0, 10)], buffer, *SAME, factor=2.0))


def test_a_failure_at_any_call_is_an_error_and_leaves_nothing(fake_gpus):  # noqa: F811
    def everything():
        with opened() as fusion:
            made = Tensors(fusion, 300)
            fusion.run(made.move())
            fusion.run(made.move())

    everything()
    functions = {name: count for name, count in fake_gpus.called().items() if name.startswith("cu")}
    quiet = {"cuGetErrorName", "cuGetErrorString", "cuModuleUnload", "cuEventDestroy_v2", "cuCtxPopCurrent_v2"}
    tried = ("cuModuleGetFunction", "cuLaunchKernel", "cuMemAlloc", "cuMemHostAlloc", "cuEventRecord", "cuMemcpyAsync")
    assert set(tried) <= set(functions) - quiet, functions
    for name in tried:
        for nth in (1, functions[name]):
            fake_gpus.fail(name, nth, 2)
            with pytest.raises(errors.SystemFailure, match=r"out of memory|OUT_OF_MEMORY"):
                everything()
            fake_gpus.fail(name, 0, 0)
    everything()


# --- images -----------------------------------------------------------------------------------------------------------


def test_a_built_in_image_is_taken_where_the_driver_accepts_it(fake_gpus):  # noqa: F811
    fake_gpus.set(fat_binaries=1)
    with opened() as fusion:
        if NVCC:
            assert fusion.origin == "built in (for sm_90)"
        if fusion.origin.startswith("built in"):
            assert fake_gpus.calls("nvrtcCompileProgram") == 0


def test_nvrtc_compiles_for_this_gpu_or_for_the_newest_that_it_knows(fake_gpus):  # noqa: F811
    for capability, architecture in ((90, "sm_90"), (75, "sm_75"), (103, "compute_100"), (110, "compute_100")):
        fake_gpus.set(capability=capability)
        with opened() as fusion:
            assert fusion.origin == f"compiled by NVRTC 13.0 ({architecture})"


def test_without_any_way_the_error_says_what_was_tried(fake_gpus, tmp_path):  # noqa: F811
    nowhere = str(tmp_path / "libnvrtc.so")
    with pytest.raises(errors.UnsupportedError) as caught, opened(nvrtc_library=nowhere):
        pass
    text = str(caught.value)
    assert re.search(
        r"there are no fusion kernels for GPU 0 \(.*, sm_90\)\. Built-in image: (this build has none|cuModule)", text
    )
    assert nowhere in text
    assert "pip install nvidia-cuda-nvrtc" in text
    assert "HVDLITE_NVRTC_LIBRARY" in text

    fake_gpus.fail("nvrtcCompileProgram", 1, 6)
    with (
        pytest.raises(errors.UnsupportedError, match=r"Compiled now: NVRTC 13\.0 \(.*libfakenvrtc\.so\) for sm_90: "),
        opened(),
    ):
        pass
    fake_gpus.fail("nvrtcCompileProgram", 0, 0)
    loads = 2 if NVCC else 1
    fake_gpus.fail("cuModuleLoadData", loads, 222)
    wanted = r"the driver \(for CUDA 13\.0\) does not take what NVRTC 13\.0 .* made for sm_90: .*"
    with pytest.raises(errors.UnsupportedError, match=wanted), opened():
        pass


def nvrtc_of(folder: Path, major: int) -> str:
    """A fake NVRTC of another CUDA."""
    path = folder / f"libnvrtc.so.{major}"
    if not path.exists():  # or it may be loaded
        shutil.copy(fake_gpu.libraries()["nvrtc"], path)
    return str(path)


def test_a_compiler_of_a_later_cuda_than_the_drivers_comes_last(fake_gpus, tmp_path):  # noqa: F811
    fake_gpus.set(driver=12040)
    later, right, earlier = (nvrtc_of(tmp_path, major) for major in (13, 12, 11))
    with opened(nvrtc_library=f"{later}:{right}:{earlier}") as fusion:
        assert fusion.origin == "compiled by NVRTC 12.0 (sm_90)"
    with opened(nvrtc_library=f"{later}:{earlier}:{right}") as fusion:
        assert fusion.origin == "compiled by NVRTC 11.0 (sm_90)"


def test_where_one_compiler_is_of_no_use_the_next_is_tried(fake_gpus, tmp_path):  # noqa: F811
    """It makes what the driver does not take, it fails, or it is another library."""
    fake_gpus.set(driver=12040)
    right = nvrtc_of(tmp_path, 12)
    another = fake_gpu.libraries()["nccl"]
    fake_gpus.fail("cuModuleLoadData", 2 if NVCC else 1, 222)  # behind the built-in image
    with opened(nvrtc_library=f"{another}:{nvrtc_of(tmp_path, 11)}:{right}") as fusion:
        assert fusion.origin == "compiled by NVRTC 12.0 (sm_90)"
    fake_gpus.fail("nvrtcCompileProgram", 1, 6)
    with opened(nvrtc_library=f"{nvrtc_of(tmp_path, 11)}:{right}") as fusion:
        assert fusion.origin == "compiled by NVRTC 12.0 (sm_90)"
    later = nvrtc_of(tmp_path, 13)
    with pytest.raises(errors.UnsupportedError) as caught, opened(nvrtc_library=f"{later}:{another}"):
        pass
    text = str(caught.value)
    assert "the driver (for CUDA 12.4) does not take what NVRTC 13.0" in text
    assert "libfakenccl.so) has no nvrtc" in text


# --- the cache --------------------------------------------------------------------------------------------------------

PROGRAM = """
import sys
from hvdlite import config
from hvdlite.bench.fusion import Fusion
print(Fusion(config.from_environment()).origin)
"""


def origin_elsewhere(folder: Path) -> str:
    """Which way another process gets its kernels."""
    sanitizer = {name: os.environ[name] for name in ("LD_PRELOAD", "ASAN_OPTIONS") if name in os.environ}
    variables = {**fake_gpu.environment(), **sanitizer, "HVDLITE_KERNEL_CACHE": str(folder), "PYTHONPATH": str(ROOT)}
    run = [sys.executable, "-c", PROGRAM]
    return subprocess.run(run, env=variables, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_only_the_first_process_compiles(tmp_path):
    if fake_gpu.missing():
        pytest.skip(str(fake_gpu.missing()))
    folder = tmp_path / "of" / "kernels"
    assert origin_elsewhere(folder) == "compiled by NVRTC 13.0 (sm_90)"
    with ThreadPoolExecutor(3) as pool:
        origins = list(pool.map(origin_elsewhere, [folder] * 3))
    assert origins == ["from the cache (NVRTC 13.0, sm_90)"] * 3
    (file,) = folder.iterdir()
    assert re.fullmatch(r"fusion-sm_90-[0-9a-f]{16}\.kernels", file.name)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_another_compiler_or_gpu_needs_is_kept_beside(fake_gpus, tmp_path):  # noqa: F811
    for settings in ({"capability": 80}, {"capability": 90}, {"driver": 12080}):
        fake_gpus.set(**settings)
        for wanted in ("compiled by NVRTC", "from the cache"):
            with opened(kernel_cache=str(tmp_path)) as fusion:
                assert fusion.origin.startswith(wanted)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
        lambda content: content[:9] + bytes([content[9] ^ 1]) + content[10:],
        lambda content: b"",
        lambda content: content + b"more",
    ],
    ids=["short", "changed", "another key", "empty", "long"],
)
def test_a_damaged_file_is_compiled_again(fake_gpus, tmp_path, capfd, damage):  # noqa: F811
    with opened(kernel_cache=str(tmp_path)):
        (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes(damage(content))
    with opened(kernel_cache=str(tmp_path)) as fusion:
        assert fusion.origin.startswith("compiled by NVRTC")
    assert capfd.readouterr().err.count(f"compiled again: {file} is damaged") == 1
    assert file.read_bytes() == content
    with opened(kernel_cache=str(tmp_path)) as fusion:
        assert fusion.origin.startswith("from the cache")


def test_a_kept_image_that_the_driver_refuses_is_compiled_again(fake_gpus, tmp_path):  # noqa: F811
    for wanted in ("compiled by NVRTC", "compiled by NVRTC", "from the cache"):
        if wanted == "compiled by NVRTC" and list(tmp_path.iterdir()):
            fake_gpus.fail("cuModuleLoadData", 2 if NVCC else 1, NO_BINARY)
        with opened(kernel_cache=str(tmp_path)) as fusion:
            assert fusion.origin.startswith(wanted)


def test_a_folder_that_cannot_be_used_costs_one_line(fake_gpus, tmp_path, capfd):  # noqa: F811
    (tmp_path / "file").write_text("")
    everybodys = tmp_path / "everybodys"
    everybodys.mkdir()
    everybodys.chmod(0o777)
    for folder, why in ((tmp_path / "file" / "sub", "Not a directory"), (everybodys, "may be written by, other users")):
        with opened(kernel_cache=str(folder)) as fusion:
            assert fusion.origin.startswith("compiled by NVRTC")
        lines = capfd.readouterr().err.splitlines()
        assert len([line for line in lines if "compiled kernels are not kept" in line and why in line]) == len(lines) == 1
    assert not list(everybodys.iterdir())


# --- NVIDIA's compilers -----------------------------------------------------------------------------------------------


@needs_nvrtc
@pytest.mark.parametrize("capability", [75, 90])
def test_the_real_nvrtc_makes_machine_code(fake_gpus, tmp_path, capability):  # noqa: F811
    fake_gpus.set(fat_binaries=1, capability=capability)
    without_built_in(fake_gpus)
    with opened(kernel_cache=str(tmp_path), nvrtc_library=REAL_NVRTC[0]) as fusion:
        assert re.fullmatch(rf"compiled by NVRTC \d+\.\d+ \(sm_{capability}\)", fusion.origin)
    (file,) = tmp_path.iterdir()
    image = file.read_bytes()[32:]
    assert image.startswith(b"\x7fELF")
    assert b"hvdlite_float32_bfloat16" in image


@needs_nvrtc
def test_the_real_nvrtc_makes_ptx_for_a_gpu_that_it_does_not_know(fake_gpus):  # noqa: F811
    """Which the fake driver does not take."""
    fake_gpus.set(capability=999)
    with pytest.raises(errors.UnsupportedError, match=r"does not take what NVRTC .* made for compute_\d+: "):
        opened(nvrtc_library=REAL_NVRTC[0]).__enter__()


@pytest.mark.skipif(not NVCC, reason="no nvcc here")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_90", "sm_120"])
def test_nvcc_keeps_the_kernels_in_registers(tmp_path, architecture):
    known = subprocess.run([NVCC, "--list-gpu-code"], capture_output=True, text=True, check=True).stdout.split()
    if architecture not in known:
        pytest.skip(f"this nvcc does not know {architecture}")
    source = ["-I", str(ROOT / "csrc"), str(ROOT / "csrc" / "cuda" / "fusion_kernels.cu")]
    options = ["-std=c++17", "--fmad=false", f"-arch={architecture}", "-Xptxas", "-v", "--cubin", "-Werror", "all-warnings"]
    done = subprocess.run(
        [NVCC, *options, *source, "-o", str(tmp_path / "out")],
        env={**os.environ, "LD_PRELOAD": ""},  # a sanitizer's library
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", done.stderr)]
    assert len(registers) == 18
    assert max(registers) <= 64  # four blocks of 256 threads on a multiprocessor
    spills = re.findall(r"(\d+) bytes stack frame, (\d+) bytes spill stores", done.stderr)
    assert spills
    assert set(spills) == {("0", "0")}
