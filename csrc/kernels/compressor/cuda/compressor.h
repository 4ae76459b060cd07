// csrc/kernels/compressor/cuda/compressor.h — two tokens to one latent, as a C ABI. Formats, norm,
// rotation, slots, pointers and errors: see kernels/quantize_rows/cuda/quantize_rows.h.
//
// gates, values fp32 [2 G, C]: rows 2j and 2j + 1 make latent j. Per channel, in fp32:
//   t = exp(-|g0 - g1|);  heavy, light: the values of the larger and the smaller gate (heavy is
//   value 0 where the gates are equal);  latent = (heavy + light * t) / (1 + t)
// with one rounding for the product and sum, then rounded to bf16. Exponential and quotient are
// each within 2 units in the last place.
#pragma once
#include <cstdint>

extern "C" {

// -> latent bf16 [G, C]. C % 8 == 0.
int deepinfer_cuda_compressor_pair(const void* gates, const void* values, void* latent,
                                   std::int64_t groups, std::int64_t channels, void* stream);

// The same and then what rows_entry does with the latent, which is not written itself: weight bf16
// [C], positions int64 [G], freqs fp32 [F] -> normed bf16 [G, C] (or null), cache uint8
// [records, C / 2 + C / 16]. C <= 512, C % 64 == 0.
int deepinfer_cuda_compressor_pair_entry(const void* gates, const void* values, const void* weight,
                                         const void* positions, const void* freqs,
                                         const void* slots, void* normed, void* cache,
                                         std::int64_t groups, std::int64_t channels,
                                         std::int64_t pairs, std::int64_t records,
                                         std::int64_t slots_are_int64, float eps, void* stream);

}  // extern "C"
