// csrc/kernels/dequant/cpu_avx2.cpp — AVX2; built with -mavx2, called only where the CPU has it.
#include <immintrin.h>

#include "kernels/dequant/cpu_variant.h"

namespace deepinfer::kernels::dequant {
namespace {

const __m128i* in128(const std::uint8_t* from) { return reinterpret_cast<const __m128i*>(from); }

bool aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

struct Plain {
  static void store(void* to, __m256i value) {
    _mm256_storeu_si256(static_cast<__m256i*>(to), value);
  }
};

struct Stream {  // 16-byte aligned, which is all that malloc promises
  static void store(void* to, __m256i value) {
    auto* half = static_cast<__m128i*>(to);
    _mm_stream_si128(half, _mm256_castsi256_si128(value));
    _mm_stream_si128(half + 1, _mm256_extracti128_si256(value, 1));
  }
};

// 16 bf16 as the upper halves of 16 fp32.
template <typename Store>
void store_wide(float* to, __m256i bf16) {
  const __m256i zero = _mm256_setzero_si256();
  const __m256i low = _mm256_unpacklo_epi16(zero, bf16);   // 0..3 and 8..11
  const __m256i high = _mm256_unpackhi_epi16(zero, bf16);  // 4..7 and 12..15
  Store::store(to, _mm256_permute2x128_si256(low, high, 0x20));
  Store::store(to + 8, _mm256_permute2x128_si256(low, high, 0x31));
}

template <typename Store>
void put(std::uint16_t* to, __m256i bf16) {
  Store::store(to, bf16);
}

template <typename Store>
void put(float* to, __m256i bf16) {
  store_wide<Store>(to, bf16);
}

// bf16 of the subnormal codes 0..7 at scale 2^0, as eight words: fraction * 2^-9.
__m128i fp8_subnormals() {
  return _mm_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60);
}

struct Fp8Scale {
  __m256i bias;        // added to exponent and fraction of a normal code
  __m256i subnormals;  // the eight words above at this scale, in both lanes
};

Fp8Scale fp8_scale(std::uint8_t scale) {
  const __m128i base = fp8_subnormals();
  const __m128i shift = _mm_set1_epi16(static_cast<short>((scale - 127) * 128));
  const __m128i is_zero = _mm_cmpeq_epi16(base, _mm_setzero_si128());
  const __m128i words = _mm_add_epi16(base, _mm_andnot_si128(is_zero, shift));
  return {_mm256_set1_epi16(static_cast<short>((scale - 7) * 128)),
          _mm256_broadcastsi128_si256(words)};
}

__m256i fp8_words(__m128i codes, const Fp8Scale& scale) {
  const __m256i code = _mm256_cvtepu8_epi16(codes);
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi16(0x7F));
  const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(magnitude, 4), scale.bias);
  const __m256i is_subnormal = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitude);
  // Word m of the table is its bytes 2m and 2m + 1. Other lanes look up nonsense and drop it.
  const __m256i bytes = _mm256_add_epi16(_mm256_mullo_epi16(magnitude, _mm256_set1_epi16(0x0202)),
                                         _mm256_set1_epi16(0x0100));
  const __m256i subnormal = _mm256_shuffle_epi8(scale.subnormals, bytes);
  const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(code, 8), _mm256_set1_epi16(-0x8000));
  return _mm256_or_si256(sign, _mm256_blendv_epi8(normal, subnormal, is_subnormal));
}

void fp8_any(const std::uint8_t* codes, std::uint8_t scale, std::uint16_t* out) {
  fp8_block_to_bf16(codes, scale, out);
}
void fp8_any(const std::uint8_t* codes, std::uint8_t scale, float* out) {
  fp8_block_to_fp32(codes, scale, out);
}
void fp4_any(const std::uint8_t* codes, std::uint8_t scale, std::uint16_t* out) {
  fp4_block_to_bf16(codes, scale, out);
}
void fp4_any(const std::uint8_t* codes, std::uint8_t scale, float* out) {
  fp4_block_to_fp32(codes, scale, out);
}

template <typename Store, typename Out>
void fp8_blocks(const std::uint8_t* codes, const std::uint8_t* scales, Out* out,
                std::size_t blocks) {
  for (std::size_t b = 0; b < blocks; ++b, codes += kBlockCols, out += kBlockCols) {
    const std::uint8_t scale = scales[b];
    if (scale < kFp8LowestScale || scale > kFp8HighestScale) {
      fp8_any(codes, scale, out);
      continue;
    }
    const Fp8Scale prepared = fp8_scale(scale);
    put<Store>(out, fp8_words(_mm_loadu_si128(in128(codes)), prepared));
    put<Store>(out + 16, fp8_words(_mm_loadu_si128(in128(codes + 16)), prepared));
  }
  _mm_sfence();
}

// The 16 values at scale 2^0 by bytes of their bf16: low bytes hold the last exponent bit.
struct Fp4Table {
  __m128i low;
  __m128i high;
};

Fp4Table fp4_table(std::uint8_t scale) {
  const __m128i base = _mm_setr_epi16(0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0);
  const __m128i shift = _mm_set1_epi16(static_cast<short>((scale - 127) * 128));
  const __m128i is_zero = _mm_cmpeq_epi16(base, _mm_setzero_si128());
  const __m128i positive = _mm_add_epi16(base, _mm_andnot_si128(is_zero, shift));
  const __m128i negative = _mm_or_si128(positive, _mm_set1_epi16(-0x8000));
  const __m128i byte = _mm_set1_epi16(0x00FF);
  return {_mm_packus_epi16(_mm_and_si128(positive, byte), _mm_and_si128(negative, byte)),
          _mm_packus_epi16(_mm_srli_epi16(positive, 8), _mm_srli_epi16(negative, 8))};
}

template <typename Store, typename Out>
void fp4_blocks(const std::uint8_t* codes, const std::uint8_t* scales, Out* out,
                std::size_t blocks) {
  const __m128i nibble = _mm_set1_epi8(0x0F);
  for (std::size_t b = 0; b < blocks; ++b, codes += kBlockCols / 2, out += kBlockCols) {
    const std::uint8_t scale = scales[b];
    if (scale < kFp4LowestScale || scale > kFp4HighestScale) {
      fp4_any(codes, scale, out);
      continue;
    }
    const Fp4Table table = fp4_table(scale);
    const __m128i packed = _mm_loadu_si128(in128(codes));
    const __m128i even = _mm_and_si128(packed, nibble);
    const __m128i odd = _mm_and_si128(_mm_srli_epi16(packed, 4), nibble);
    for (int half = 0; half < 2; ++half) {
      const __m128i columns =
          half == 0 ? _mm_unpacklo_epi8(even, odd) : _mm_unpackhi_epi8(even, odd);
      const __m128i low = _mm_shuffle_epi8(table.low, columns);
      const __m128i high = _mm_shuffle_epi8(table.high, columns);
      put<Store>(out + 16 * half,
                 _mm256_set_m128i(_mm_unpackhi_epi8(low, high), _mm_unpacklo_epi8(low, high)));
    }
  }
  _mm_sfence();
}

template <typename Out>
void fp8(const std::uint8_t* codes, const std::uint8_t* scales, Out* out, std::size_t blocks,
         bool stream) {
  if (stream && aligned(out, 16)) {
    fp8_blocks<Stream>(codes, scales, out, blocks);
  } else {
    fp8_blocks<Plain>(codes, scales, out, blocks);
  }
}

template <typename Out>
void fp4(const std::uint8_t* codes, const std::uint8_t* scales, Out* out, std::size_t blocks,
         bool stream) {
  if (stream && aligned(out, 16)) {
    fp4_blocks<Stream>(codes, scales, out, blocks);
  } else {
    fp4_blocks<Plain>(codes, scales, out, blocks);
  }
}

bool has_e4m3_nan(const std::uint8_t* codes, std::size_t count) {
  const __m256i sign = _mm256_set1_epi8(-0x80);
  const __m256i ones = _mm256_set1_epi8(-1);
  __m256i found = _mm256_setzero_si256();
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i));
    found = _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_or_si256(code, sign), ones));
  }
  bool rest = false;
  for (; i < count; ++i) rest |= (codes[i] | 0x80) == 0xFF;
  return rest || _mm256_testz_si256(found, found) == 0;
}

}  // namespace

const Variant kAvx2 = {"avx2",     fp8<std::uint16_t>, fp8<float>, fp4<std::uint16_t>,
                       fp4<float>, has_e4m3_nan};

}  // namespace deepinfer::kernels::dequant
