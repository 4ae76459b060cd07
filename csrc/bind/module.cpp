// csrc/bind/module.cpp — the module deepinfer._native.
#include <nanobind/nanobind.h>

#include "bind/topics.h"

NB_MODULE(_native, m) {
  m.doc() = "Native kernels of DeepInfer. Arrays by DLPack or the buffer protocol, never copied.";
  deepinfer::bind::bind_formats(m);
  deepinfer::bind::bind_quantize(m);
  deepinfer::bind::bind_rng(m);
  deepinfer::bind::bind_dequant(m);
}
