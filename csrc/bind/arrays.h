// csrc/bind/arrays.h — arrays that Python hands in: what they must be, and how to say so.
// Arrays arrive by DLPack or the buffer protocol and are never copied. bf16 is DLPack's bfloat16;
// where a bf16 value is meant, uint16 is taken as its bits, since numpy has no bf16.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace deepinfer::bind {

namespace nb = nanobind;

enum class Kind { kByte, kBf16, kFp32, kInt32 };

struct Array {
  std::string name;
  nb::ndarray<nb::ro> owner;  // keeps the memory alive while the kernel runs
  void* data;                 // written only if it came from output()
  Kind kind;
  std::vector<std::size_t> shape;
  int device_type;
  int device_id;

  std::size_t size() const;
  std::size_t bytes() const;
  std::string text() const;  // "uint8 (3, 64)", for messages
  bool on_cpu() const { return device_type == nb::device::cpu::value; }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// A C-contiguous array of one of `kinds`, or TypeError / ValueError that names the argument.
Array input(nb::handle object, const char* name, std::initializer_list<Kind> kinds);
// The same, and writable.
Array output(nb::handle object, const char* name, std::initializer_list<Kind> kinds);

// ValueError unless the shape is `needed`; `why` says where the need comes from.
void require_shape(const Array& array, const std::vector<std::size_t>& needed, const char* why);
void require_dims(const Array& array, std::size_t dims, const char* axes);
void require_same_device(const Array& array, const Array& other);
void require_cpu(const Array& array);
// ValueError if the two share memory.
void require_apart(const Array& out, const Array& other);

std::string text(const std::vector<std::size_t>& shape);

}  // namespace deepinfer::bind
