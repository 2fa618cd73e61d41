"""K-quants decoded one number at a time, from the description of the blocks in ggml-quants.

A super-block holds 256 numbers. Its bytes, in order (half is a little-endian float16):

    Q2_K   scales 16 (a 4-bit scale, above it a 4-bit minimum, for each 16 numbers), quants 64,
           half d, half dmin
    Q3_K   high bits 32, quants 64, scales 12 (16 of 6 bits), half d
    Q4_K   half d, half dmin, scales 12 (8 scales and 8 minima of 6 bits), quants 128
    Q5_K   half d, half dmin, scales 12 (the same), high bits 32, quants 128
    Q6_K   low bits 128, high bits 64, signed scales 16, half d
"""

import struct

SIZES = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}


def half(block, at):
    return struct.unpack_from("<e", block, at)[0]


def q2_k(block, i):
    """The i-th number: 2 bits of byte 32 * (i // 128) + i % 32, those of its quarter of 128."""
    part = 16 + 32 * (i // 128) + i % 32
    quant = block[part] >> (2 * (i % 128 // 32)) & 3
    pair = block[i // 16]
    return half(block, 80) * (pair & 15) * quant - half(block, 82) * (pair >> 4)


def q3_k(block, i):
    """A set high bit stands for 0, a clear one for -4."""
    low = block[32 + 32 * (i // 128) + i % 32] >> (2 * (i % 128 // 32)) & 3
    high = block[i % 32] >> (i // 32) & 1
    scales, j = block[96:108], i // 16
    four = scales[j % 8] & 15 if j < 8 else scales[j % 8] >> 4
    two = scales[8 + j % 4] >> (2 * (j // 4)) & 3
    return half(block, 108) * ((four | two << 4) - 32) * (low - (0 if high else 4))


def scale_and_minimum(scales, j):
    """Six bits each of the j-th of 8; the upper four have their high bits with the lower four."""
    if j < 4:
        return scales[j] & 63, scales[j + 4] & 63
    scale = scales[j + 4] & 15 | scales[j - 4] >> 6 << 4
    return scale, scales[j + 4] >> 4 | scales[j] >> 6 << 4


def q4_k(block, i):
    byte = block[16 + 32 * (i // 64) + i % 32]
    quant = byte >> 4 if i % 64 >= 32 else byte & 15
    scale, minimum = scale_and_minimum(block[4:16], i // 32)
    return half(block, 0) * scale * quant - half(block, 2) * minimum


def q5_k(block, i):
    byte = block[48 + 32 * (i // 64) + i % 32]
    quant = (byte >> 4 if i % 64 >= 32 else byte & 15) | (block[16 + i % 32] >> (i // 32) & 1) << 4
    scale, minimum = scale_and_minimum(block[4:16], i // 32)
    return half(block, 0) * scale * quant - half(block, 2) * minimum


def q6_k(block, i):
    """Four bits low, two bits high, less 32."""
    byte = block[64 * (i // 128) + i % 64]
    low = byte >> 4 if i % 128 >= 64 else byte & 15
    high = block[128 + 32 * (i // 128) + i % 32] >> (2 * (i % 128 // 32)) & 3
    scale = struct.unpack_from("<b", block, 192 + i // 16)[0]
    return half(block, 208) * scale * ((low | high << 4) - 32)


DECODERS = {"Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}
