// csrc/bind/topics.h — what module.cpp registers, one function a topic.
#pragma once
#include <nanobind/nanobind.h>

namespace deepinfer::bind {

void bind_formats(nanobind::module_& m);
void bind_quantize(nanobind::module_& m);
void bind_rng(nanobind::module_& m);
void bind_dequant(nanobind::module_& m);

}  // namespace deepinfer::bind
