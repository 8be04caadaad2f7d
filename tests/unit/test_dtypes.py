"""The table of element types, and that it is the native one."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hvdlite.dtypes import DType, code_of_name, numpy_dtype
from hvdlite.errors import InvalidArgumentError

HEADER = Path(__file__).parents[2] / "csrc" / "base" / "types.h"


def test_codes_are_those_of_the_native_header():
    body = re.search(r"enum class DType[^{]*\{(.*?)\};", HEADER.read_text(), re.DOTALL)[1]
    native = {name.upper(): int(number) for name, number in re.findall(r"k(\w+) = (\d+)", body)}
    assert native == {dtype.name: dtype.value for dtype in DType}


@pytest.mark.parametrize("dtype", [d for d in DType if d is not DType.BFLOAT16], ids=lambda d: d.label)
def test_numpy_knows_the_same_type(dtype):
    found = numpy_dtype(dtype)
    assert found.name == dtype.label
    assert found.itemsize == dtype.itemsize
    assert (found.kind == "f") == dtype.is_float
    assert code_of_name(found.name) is dtype


def test_bfloat16_is_a_float_of_two_bytes():
    assert DType.BFLOAT16.itemsize == 2
    assert DType.BFLOAT16.is_float
    assert code_of_name("bfloat16") is DType.BFLOAT16


def test_bfloat16_is_never_imported_by_us():
    program = (
        "import sys\n"
        "from hvdlite import dtypes, errors\n"
        "try:\n    dtypes.numpy_dtype(9)\n"
        "except errors.UnsupportedError as e:\n    assert 'ml_dtypes' in str(e)\n"
        "else:\n    raise SystemExit('no error')\n"
        "assert 'ml_dtypes' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_bfloat16_is_found_once_somebody_imported_it():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert numpy_dtype(DType.BFLOAT16) == np.dtype(ml_dtypes.bfloat16)


@pytest.mark.parametrize("name", ["clongdouble", "object", "str64", "datetime64[ns]"])
def test_an_unknown_type_is_refused_with_the_list_of_known_ones(name):
    with pytest.raises(InvalidArgumentError, match=rf"NumPy array of dtype {re.escape(name)} .* uint8, .*bool"):
        code_of_name(name, "NumPy array")
