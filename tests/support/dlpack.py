"""A mark for tests that need the functions by which torch describes its tensors to native code."""

import pytest

torch = pytest.importorskip("torch")

EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
needs_exchange = pytest.mark.skipif(EXCHANGE is None, reason="torch has no DLPack exchange functions before 2.10")
