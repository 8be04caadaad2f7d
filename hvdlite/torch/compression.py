"""The names of ``horovod.torch.compression``, and `BF16Compressor`."""

from hvdlite.compression import BF16Compressor, Compression, Compressor, FP16Compressor, NoneCompressor

__all__ = ["BF16Compressor", "Compression", "Compressor", "FP16Compressor", "NoneCompressor"]
