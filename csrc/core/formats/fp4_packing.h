// csrc/core/formats/fp4_packing.h — two E2M1 codes in one byte.
// Byte k of a row holds column 2k in its low nibble and column 2k + 1 in its high nibble.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

namespace deepinfer::formats {

constexpr std::uint8_t pack_fp4(std::uint8_t even_column, std::uint8_t odd_column) {
  return static_cast<std::uint8_t>((even_column & 0xFu) | ((odd_column & 0xFu) << 4));
}

constexpr std::uint8_t unpack_fp4(std::span<const std::uint8_t> row, std::size_t column) {
  const std::uint8_t byte = row[column / 2];
  return column % 2 == 0 ? static_cast<std::uint8_t>(byte & 0xFu)
                         : static_cast<std::uint8_t>(byte >> 4);
}

}  // namespace deepinfer::formats
