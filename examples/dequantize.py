"""A first look at the native module: eight MXFP4 codes and their scale become numbers.

python examples/dequantize.py
"""

from __future__ import annotations

import numpy as np

from deepinfer.engine.native import load


def main() -> None:
    native = load()
    codes = np.arange(16, dtype=np.uint8) | (np.arange(16, dtype=np.uint8)[::-1] << 4)  # low nibble: even column
    scale = np.array([[128]], dtype=np.uint8)  # 2^(128 - 127)
    out = np.empty((1, 32), dtype=np.float32)
    native.dequant_fp4_row(codes.reshape(1, 16), scale, out)
    print("packed FP4  ", " ".join("%02x" % code for code in codes))
    print("times 2^1   ", " ".join("%g" % value for value in out[0]))
    print("computed by ", native.capabilities()["simd"])


if __name__ == "__main__":
    main()
