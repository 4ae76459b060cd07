// csrc/kernels/dequant/cpu_avx512.cpp — AVX512F and AVX512BW; built with those two switched on,
// called only where the CPU has both.
#include <immintrin.h>

#include "kernels/dequant/cpu_variant.h"

namespace deepinfer::kernels::dequant {
namespace {

bool aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

struct Plain {
  static void store(void* to, __m512i value) { _mm512_storeu_si512(to, value); }
};

struct Stream64 {
  static void store(void* to, __m512i value) {
    _mm512_stream_si512(static_cast<__m512i*>(to), value);
  }
};

struct Stream16 {  // all the alignment that malloc promises
  static void store(void* to, __m512i value) {
    auto* part = static_cast<__m128i*>(to);
    _mm_stream_si128(part, _mm512_castsi512_si128(value));
    _mm_stream_si128(part + 1, _mm512_extracti32x4_epi32(value, 1));
    _mm_stream_si128(part + 2, _mm512_extracti32x4_epi32(value, 2));
    _mm_stream_si128(part + 3, _mm512_extracti32x4_epi32(value, 3));
  }
};

template <typename Store>
void put(std::uint16_t* to, __m512i bf16) {
  Store::store(to, bf16);
}

// 32 bf16 as the upper halves of 32 fp32.
template <typename Store>
void put(float* to, __m512i bf16) {
  const __m512i first = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(bf16));
  const __m512i second = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(bf16, 1));
  Store::store(to, _mm512_slli_epi32(first, 16));
  Store::store(to + 16, _mm512_slli_epi32(second, 16));
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

// Eight words, four times over.
__m512i repeated(__m128i words) { return _mm512_broadcast_i32x4(words); }

constexpr __mmask32 kNotZero = 0xFEFEFEFEu;  // all but word 0 of each eight

template <typename Store, typename Out>
void fp8_block(const std::uint8_t* codes, std::uint8_t scale, Out* out) {
  // bf16 of the subnormal codes 0..7 at scale 2^0: fraction * 2^-9.
  const __m512i subnormals =
      repeated(_mm_setr_epi16(0, 0x3B00, 0x3B80, 0x3BC0, 0x3C00, 0x3C20, 0x3C40, 0x3C60));
  const __m512i bias = _mm512_set1_epi16(static_cast<short>((scale - 7) * 128));
  const __m512i shift = _mm512_set1_epi16(static_cast<short>((scale - 127) * 128));
  const __m512i table = _mm512_mask_add_epi16(subnormals, kNotZero, subnormals, shift);
  const __m512i code =
      _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
  const __m512i magnitude = _mm512_and_si512(code, _mm512_set1_epi16(0x7F));
  const __m512i normal = _mm512_add_epi16(_mm512_slli_epi16(magnitude, 4), bias);
  const __mmask32 is_subnormal = _mm512_cmplt_epi16_mask(magnitude, _mm512_set1_epi16(8));
  const __m512i value = _mm512_mask_permutexvar_epi16(normal, is_subnormal, magnitude, table);
  const __m512i sign = _mm512_and_si512(_mm512_slli_epi16(code, 8), _mm512_set1_epi16(-0x8000));
  put<Store>(out, _mm512_or_si512(value, sign));
}

template <typename Store, typename Out>
void fp4_block(const std::uint8_t* codes, std::uint8_t scale, Out* out) {
  // bf16 of the codes at scale 2^0, twice over: the lookup sees the bit above a nibble.
  const __m128i positive =
      _mm_setr_epi16(0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0);
  const __m512i values = _mm512_mask_or_epi32(repeated(positive), 0xF0F0, repeated(positive),
                                              _mm512_set1_epi16(-0x8000));
  const __m512i shift = _mm512_set1_epi16(static_cast<short>((scale - 127) * 128));
  const __m512i table = _mm512_mask_add_epi16(values, kNotZero, values, shift);
  const __m512i pair =
      _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
  // Low word: the byte, whose low nibble is the even column. High word: the byte shifted by 4.
  const __m512i columns = _mm512_or_si512(pair, _mm512_slli_epi32(pair, 12));
  put<Store>(out, _mm512_permutexvar_epi16(columns, table));
}

// The inner loop calls nothing, so that its constants stay in registers.
template <typename Store, typename Out>
void fp8_blocks(const std::uint8_t* codes, const std::uint8_t* scales, Out* out,
                std::size_t blocks) {
  std::size_t b = 0;
  while (b < blocks) {
    for (; b < blocks && scales[b] >= kFp8LowestScale && scales[b] <= kFp8HighestScale; ++b) {
      fp8_block<Store>(codes + b * kBlockCols, scales[b], out + b * kBlockCols);
    }
    if (b == blocks) break;
    fp8_any(codes + b * kBlockCols, scales[b], out + b * kBlockCols);
    ++b;
  }
}

template <typename Store, typename Out>
void fp4_blocks(const std::uint8_t* codes, const std::uint8_t* scales, Out* out,
                std::size_t blocks) {
  std::size_t b = 0;
  while (b < blocks) {
    for (; b < blocks && scales[b] >= kFp4LowestScale && scales[b] <= kFp4HighestScale; ++b) {
      fp4_block<Store>(codes + b * (kBlockCols / 2), scales[b], out + b * kBlockCols);
    }
    if (b == blocks) break;
    fp4_any(codes + b * (kBlockCols / 2), scales[b], out + b * kBlockCols);
    ++b;
  }
}

template <typename Out>
void fp8(const std::uint8_t* codes, const std::uint8_t* scales, Out* out, std::size_t blocks,
         bool stream) {
  if (stream && aligned(out, 64)) {
    fp8_blocks<Stream64>(codes, scales, out, blocks);
  } else if (stream && aligned(out, 16)) {
    fp8_blocks<Stream16>(codes, scales, out, blocks);
  } else {
    fp8_blocks<Plain>(codes, scales, out, blocks);
  }
}

template <typename Out>
void fp4(const std::uint8_t* codes, const std::uint8_t* scales, Out* out, std::size_t blocks,
         bool stream) {
  if (stream && aligned(out, 64)) {
    fp4_blocks<Stream64>(codes, scales, out, blocks);
  } else if (stream && aligned(out, 16)) {
    fp4_blocks<Stream16>(codes, scales, out, blocks);
  } else {
    fp4_blocks<Plain>(codes, scales, out, blocks);
  }
}

bool has_e4m3_nan(const std::uint8_t* codes, std::size_t count) {
  const __m512i sign = _mm512_set1_epi8(-0x80);
  const __m512i ones = _mm512_set1_epi8(-1);
  __mmask64 found = 0;
  std::size_t i = 0;
  for (; i + 64 <= count; i += 64) {
    const __m512i code = _mm512_loadu_si512(codes + i);
    found |= _mm512_cmpeq_epi8_mask(_mm512_or_si512(code, sign), ones);
  }
  bool rest = false;
  for (; i < count; ++i) rest |= (codes[i] | 0x80) == 0xFF;
  return rest || found != 0;
}

void finish_stream() { _mm_sfence(); }

}  // namespace

const Variant kAvx512 = {"avx512",   fp8<std::uint16_t>, fp8<float>,   fp4<std::uint16_t>,
                         fp4<float>, has_e4m3_nan,       finish_stream};

}  // namespace deepinfer::kernels::dequant
