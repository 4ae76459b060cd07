// csrc/core/float_environment.h — the IEEE default environment for the length of a scope.
// A library built with -ffast-math can leave a thread flushing subnormals to zero; the formats
// need them. What was set before comes back at the end of the scope.
#pragma once
#include <cfenv>

namespace deepinfer {

class DefaultFloatEnvironment {
 public:
  DefaultFloatEnvironment() {
    std::feholdexcept(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() { std::fesetenv(&before_); }
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace deepinfer
