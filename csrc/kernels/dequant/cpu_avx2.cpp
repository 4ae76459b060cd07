// csrc/kernels/dequant/cpu_avx2.cpp — AVX2; built with -mavx2, called only where the CPU has it.
#include <immintrin.h>

#include "kernels/dequant/cpu_variant.h"

namespace deepinfer::kernels::dequant {
namespace {

bool aligned(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % bytes == 0;
}

struct Plain {
  static void store(void* to, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(to), value); }
};

struct Stream {  // 16-byte aligned, which is all that malloc promises
  static void store(void* to, __m128i value) { _mm_stream_si128(static_cast<__m128i*>(to), value); }
};

template <typename Store>
void put(std::uint16_t* to, __m128i bf16) {
  Store::store(to, bf16);
}

// Eight bf16 as the upper halves of eight fp32.
template <typename Store>
void put(float* to, __m128i bf16) {
  const __m128i zero = _mm_setzero_si128();
  Store::store(to, _mm_unpacklo_epi16(zero, bf16));
  Store::store(to + 4, _mm_unpackhi_epi16(zero, bf16));
}

// Eight positive bf16 by bytes, for lookups by a three-bit index.
struct Bytes {
  __m128i low;   // the last exponent bit and the fraction; both halves alike
  __m128i high;  // the rest of the exponent; both halves alike
};

// `words` times 2^(scale - 127), zero staying zero; the products are normal.
Bytes scaled_bytes(__m128i words, std::uint8_t scale) {
  const __m128i shift = _mm_set1_epi16(static_cast<short>((scale - 127) * 128));
  const __m128i is_zero = _mm_cmpeq_epi16(words, _mm_setzero_si128());
  const __m128i scaled = _mm_add_epi16(words, _mm_andnot_si128(is_zero, shift));
  const __m128i low = _mm_and_si128(scaled, _mm_set1_epi16(0x00FF));
  const __m128i high = _mm_srli_epi16(scaled, 8);
  return {_mm_packus_epi16(low, low), _mm_packus_epi16(high, high)};
}

// 32 bf16 from their low and high bytes.
template <typename Store, typename Out>
void put_bytes(Out* to, __m256i low, __m256i high) {
  const __m256i first = _mm256_unpacklo_epi8(low, high);   // 0..7 and 16..23
  const __m256i second = _mm256_unpackhi_epi8(low, high);  // 8..15 and 24..31
  put<Store>(to, _mm256_castsi256_si128(first));
  put<Store>(to + 8, _mm256_castsi256_si128(second));
  put<Store>(to + 16, _mm256_extracti128_si256(first, 1));
  put<Store>(to + 24, _mm256_extracti128_si256(second, 1));
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

// One block of codes to bf16, all byte by byte: 32 codes fill a register.
template <typename Store, typename Out>
void fp8_block(const std::uint8_t* codes, std::uint8_t scale, Out* out) {
  const __m256i code = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
  const __m256i magnitude = _mm256_and_si256(code, _mm256_set1_epi8(0x7F));
  // Normalized: five bits of exponent field + 2, three of fraction. Subnormals have fields down to
  // -2 once their leading one is gone; zero is cleared at the end.
  const __m256i from_subnormal = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 0x00, 0x08, 0x0C, 0x10, 0x12, 0x14, 0x16, 0, 0, 0, 0, 0, 0, 0, 0));
  const __m256i is_subnormal = _mm256_cmpgt_epi8(_mm256_set1_epi8(8), magnitude);
  const __m256i normalized =
      _mm256_blendv_epi8(_mm256_add_epi8(magnitude, _mm256_set1_epi8(0x10)),
                         _mm256_shuffle_epi8(from_subnormal, magnitude), is_subnormal);
  const __m256i field = _mm256_and_si256(_mm256_srli_epi16(normalized, 3), _mm256_set1_epi8(0x1F));
  const __m256i exponent = _mm256_add_epi8(field, _mm256_set1_epi8(static_cast<char>(scale - 9)));
  // High byte: sign, exponent / 2. Low byte: the exponent's last bit, the fraction, four zeros.
  const __m256i half = _mm256_and_si256(_mm256_srli_epi16(exponent, 1), _mm256_set1_epi8(0x7F));
  const __m256i last_bit =
      _mm256_and_si256(_mm256_slli_epi16(exponent, 7), _mm256_set1_epi8(-0x80));
  const __m256i fraction =
      _mm256_and_si256(_mm256_slli_epi16(normalized, 4), _mm256_set1_epi8(0x70));
  const __m256i is_zero = _mm256_cmpeq_epi8(magnitude, _mm256_setzero_si256());
  const __m256i low = _mm256_andnot_si256(is_zero, _mm256_or_si256(last_bit, fraction));
  const __m256i sign = _mm256_and_si256(code, _mm256_set1_epi8(-0x80));
  const __m256i high = _mm256_or_si256(sign, _mm256_andnot_si256(is_zero, half));
  put_bytes<Store>(out, low, high);
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
void fp4_block(const std::uint8_t* codes, std::uint8_t scale, Out* out) {
  // bf16 of the codes 0..7 at scale 2^0; in the upper halves of the tables, those of 8..15.
  const __m128i words = _mm_setr_epi16(0, 0x3F00, 0x3F80, 0x3FC0, 0x4000, 0x4040, 0x4080, 0x40C0);
  const Bytes table = scaled_bytes(words, scale);
  const __m128i signs = _mm_set_epi64x(static_cast<long long>(0x8080808080808080u), 0);
  const __m256i high = _mm256_broadcastsi128_si256(_mm_or_si128(table.high, signs));
  const __m256i low = _mm256_broadcastsi128_si256(table.low);
  const __m128i packed = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes));
  const __m128i nibble = _mm_set1_epi8(0x0F);
  const __m128i even = _mm_and_si128(packed, nibble);
  const __m128i odd = _mm_and_si128(_mm_srli_epi16(packed, 4), nibble);
  const __m256i columns =
      _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
  put_bytes<Store>(out, _mm256_shuffle_epi8(low, columns), _mm256_shuffle_epi8(high, columns));
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

void finish_stream() { _mm_sfence(); }

}  // namespace

const Variant kAvx2 = {"avx2",     fp8<std::uint16_t>, fp8<float>,   fp4<std::uint16_t>,
                       fp4<float>, has_e4m3_nan,       finish_stream};

}  // namespace deepinfer::kernels::dequant
