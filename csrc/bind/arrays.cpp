// csrc/bind/arrays.cpp — see arrays.h.
#include "bind/arrays.h"

#include <algorithm>
#include <functional>
#include <optional>

namespace deepinfer::bind {
namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::kByte:
      return "uint8";
    case Kind::kBf16:
      return "bfloat16 (or its bits as uint16)";
    case Kind::kFp32:
      return "float32";
    case Kind::kInt32:
      return "int32";
  }
  return "?";
}

std::optional<Kind> kind_of(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto code = static_cast<Code>(dtype.code);
  if (dtype.lanes != 1) return std::nullopt;
  const bool integer = code == Code::UInt || code == Code::Int;
  if (integer && dtype.bits == 8) return Kind::kByte;
  if ((code == Code::UInt || code == Code::Bfloat) && dtype.bits == 16) return Kind::kBf16;
  if (code == Code::Int && dtype.bits == 32) return Kind::kInt32;
  if (code == Code::Float && dtype.bits == 32) return Kind::kFp32;
  return std::nullopt;
}

std::string dtype_text(nb::dlpack::dtype dtype) {
  using Code = nb::dlpack::dtype_code;
  const char* prefix = "type code ";
  switch (static_cast<Code>(dtype.code)) {
    case Code::Int:
      prefix = "int";
      break;
    case Code::UInt:
      prefix = "uint";
      break;
    case Code::Float:
      prefix = "float";
      break;
    case Code::Bfloat:
      prefix = "bfloat";
      break;
    case Code::Complex:
      prefix = "complex";
      break;
    case Code::Bool:
      prefix = "bool";
      break;
    default:
      return prefix + std::to_string(dtype.code) + " of " + std::to_string(dtype.bits);
  }
  return prefix + std::to_string(dtype.bits);
}

bool is_c_contiguous(const nb::ndarray<nb::ro>& array) {
  if (array.size() == 0) return true;
  std::int64_t expected = 1;
  for (std::size_t axis = array.ndim(); axis-- > 0;) {
    if (array.shape(axis) != 1 && array.stride(axis) != expected) return false;
    expected *= static_cast<std::int64_t>(array.shape(axis));
  }
  return true;
}

Array checked(nb::ndarray<nb::ro> owner, void* data, const char* name,
              std::initializer_list<Kind> kinds) {
  const std::optional<Kind> kind = kind_of(owner.dtype());
  if (!kind || std::find(kinds.begin(), kinds.end(), *kind) == kinds.end()) {
    std::string needed;
    for (const Kind one : kinds)
      needed += (needed.empty() ? "" : " or ") + std::string(name_of(one));
    throw nb::type_error((std::string(name) + ": dtype " + dtype_text(owner.dtype()) + " given, " +
                          needed + " needed")
                             .c_str());
  }
  if (!is_c_contiguous(owner)) {
    throw nb::value_error(
        (std::string(name) + ": strided memory given, C-contiguous needed: pass a contiguous copy")
            .c_str());
  }
  Array array{name, owner, data, *kind, {}, owner.device_type(), owner.device_id()};
  for (std::size_t axis = 0; axis < owner.ndim(); ++axis) array.shape.push_back(owner.shape(axis));
  return array;
}

[[noreturn]] void not_an_array(nb::handle object, const char* name, const char* needed) {
  const nb::str type(object.type().attr("__name__"));
  throw nb::type_error(
      (std::string(name) + ": " + type.c_str() + " given, " + needed + " needed").c_str());
}

}  // namespace

std::string text(const std::vector<std::size_t>& shape) {
  std::string out = "(";
  for (const std::size_t extent : shape) {
    out += (out.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return out + (shape.size() == 1 ? ",)" : ")");
}

std::size_t Array::size() const {
  std::size_t product = 1;
  for (const std::size_t extent : shape) product *= extent;
  return product;
}

std::size_t Array::bytes() const { return size() * owner.itemsize(); }

std::string Array::text() const { return dtype_text(owner.dtype()) + " " + bind::text(shape); }

Array input(nb::handle object, const char* name, std::initializer_list<Kind> kinds) {
  nb::ndarray<nb::ro> array;
  if (!nb::try_cast(object, array, false)) {
    not_an_array(object, name, "an array (DLPack or buffer protocol)");
  }
  void* data = const_cast<void*>(static_cast<const void*>(array.data()));
  return checked(array, data, name, kinds);
}

Array output(nb::handle object, const char* name, std::initializer_list<Kind> kinds) {
  nb::ndarray<> array;
  if (!nb::try_cast(object, array, false)) {
    not_an_array(object, name, "a writable array (DLPack or buffer protocol)");
  }
  return checked(nb::ndarray<nb::ro>(array), array.data(), name, kinds);
}

void require_shape(const Array& array, const std::vector<std::size_t>& needed, const char* why) {
  if (array.shape == needed) return;
  throw nb::value_error(
      (array.name + ": " + array.text() + " given, shape " + text(needed) + " needed: " + why)
          .c_str());
}

void require_dims(const Array& array, std::size_t dims, const char* axes) {
  if (array.shape.size() == dims) return;
  throw nb::value_error(
      (array.name + ": shape " + text(array.shape) + " given, " + axes + " needed").c_str());
}

void require_same_device(const Array& array, const Array& other) {
  if (array.device_type == other.device_type && array.device_id == other.device_id) return;
  throw nb::value_error((array.name + ": on another device than " + other.name +
                         "; all arrays of one call are on one device")
                            .c_str());
}

void require_cpu(const Array& array) {
  if (array.on_cpu()) return;
  throw nb::value_error((array.name + ": device type " + std::to_string(array.device_type) +
                         " given, CPU memory needed")
                            .c_str());
}

void require_apart(const Array& out, const Array& other) {
  const std::less<const std::byte*> before;
  const std::byte* first = out.as<std::byte>();
  const std::byte* second = other.as<std::byte>();
  if (out.bytes() == 0 || other.bytes() == 0) return;
  if (!before(first, second + other.bytes()) || !before(second, first + out.bytes())) return;
  throw nb::value_error((out.name + ": shares memory with " + other.name).c_str());
}

}  // namespace deepinfer::bind
