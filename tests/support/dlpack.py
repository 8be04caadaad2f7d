"""Does torch tell native code where its tensors are?"""

import pytest

torch = pytest.importorskip("torch")

EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
needs_exchange = pytest.mark.skipif(EXCHANGE is None, reason="torch has no DLPack exchange functions before 2.10")
