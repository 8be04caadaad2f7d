"""`python -m hvdlite.bench kernels` on fake GPUs, whose times mean nothing; what it measures is real on a real one."""

import json

import pytest
from support import fake_gpu
from support.fake_gpu import fake_gpus  # noqa: F401

from hvdlite import _engine, errors
from hvdlite.bench import kernels
from hvdlite.bench.__main__ import main

errors.install(_engine.set_error_classes)

WORDS = ["kernels", "--sizes", "1K,6000", "--tensors", "1,7,300", "--launches", "3", "--repeats", "2"]


@pytest.fixture
def knobs(monkeypatch):
    for name, value in fake_gpu.environment().items():
        monkeypatch.setenv(name, value)


def test_every_case_is_checked_timed_and_printed(fake_gpus, knobs, capsys, tmp_path):  # noqa: F811
    output = tmp_path / "kernels.jsonl"
    assert main([*WORDS, "--output", str(output)]) == 0
    first, *records = map(json.loads, output.read_text().splitlines())
    assert first == {"record": "gpu", "gpu": "Fake GPU", "kernels": "compiled by NVRTC 13.0 (sm_90)"}
    shapes = {(record["bytes"], record["tensors"]) for record in records}
    assert shapes == {(1024, 1), (1024, 7), (6000, 1), (6000, 7), (6000, 300)}  # 1024 bytes are too few for 300
    assert len(records) == len(shapes) * 4 * 2
    for record in records:
        assert min(record[name] for name in ("row", "alone", "host", "copy_row", "copy_alone")) >= 0
        elements = record["bytes"] // 4 // record["tensors"] * record["tensors"]
        assert record["moved"] == elements * (8 if record["case"] in ("copy", "scale") else 6)
    text = capsys.readouterr().out
    assert text.startswith("Fake GPU; kernels compiled by NVRTC 13.0 (sm_90).\n")
    assert len([line for line in text.splitlines() if line.startswith("| bfloat16")]) == 10


def test_a_wrong_result_is_an_error(fake_gpus, knobs, capsys, monkeypatch):  # noqa: F811
    from hvdlite.bench import fusion

    right = fusion.Fusion.run
    monkeypatch.setattr(fusion.Fusion, "run", lambda self, move, launches=1: move.unpack or right(self, move, launches))
    assert main(WORDS) == 1
    assert "the fusion kernels of the case copy give wrong results" in capsys.readouterr().err


def test_without_a_gpu_it_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HVDLITE_CUDA_LIBRARY", str(tmp_path / "libcuda.so.1"))
    assert main(WORDS) == 1
    assert "the CUDA driver cannot be loaded" in capsys.readouterr().err


def test_odd_numbers_of_tensors_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["kernels", "--tensors", "1,none"])
    assert "'1,none' is not a list of whole numbers above 0" in capsys.readouterr().err


def record(size, tensors, percent=100.0, row=1e-6, way="pack"):
    facts = {"record": "kernel", "case": "copy", "way": way, "bytes": size, "tensors": tensors}
    return {**facts, "percent_of_copy": percent, "row": row}


def test_an_output_file_can_be_printed_as_a_table_later(capsys, tmp_path):
    gpu = {"record": "gpu", "gpu": "Fake GPU", "kernels": "compiled in"}
    records = [gpu, {**record(1 << 20, 160), "alone": 2e-6, "host": 1e-6, "copy_row": 1e-6, "rate": 1e12}]
    output = tmp_path / "kernels.jsonl"
    output.write_text("".join(json.dumps(each) + "\n" for each in records))
    assert main(["table", str(output)]) == 0
    assert capsys.readouterr().out == kernels.table(records) + "\n"


def test_what_is_below_its_target_is_listed():
    good = [
        record(1 << 20, 1, 85.0),
        record(1 << 28, 160, 90.0, 1.0),
        record(1 << 20, 160, 3.0, 10e-6),
        record(1 << 14, 1, 1.0),
    ]
    good.append(record(1 << 20, 160, 3.0, 1.0, "unpack"))  # the target is that of packing
    assert kernels.missed(good) == []
    assert kernels.missed([*good, record(1 << 24, 1, 84.0), record(1 << 18, 160, 3.0, 11e-6)]) == [
        "pack of 1 x 16 MiB, copy: 84 % of the copy's rate, not 85",
        "pack of 160 x 1.60 KiB, copy: 11.0 µs, not 10.0 µs",
    ]
    assert kernels.missed([record(1 << 14, 1)]) == ["tensors of 1 MB or more: not measured", "160 small tensors: not measured"]


def test_below_target_the_status_says_so(fake_gpus, knobs, capsys, monkeypatch):  # noqa: F811
    monkeypatch.setattr(kernels, "missed", lambda records: ["pack: too slow"] if records else [])
    assert main(WORDS) == 0
    assert "Below target" not in capsys.readouterr().out
    assert main([*WORDS, "--targets"]) == 3
    assert capsys.readouterr().out.endswith("\nBelow target:\n- pack: too slow\n")
