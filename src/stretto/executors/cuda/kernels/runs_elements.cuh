// runs_elements.cuh -- elements that a transfer converts, one at a time.
//
// The roundings are those of element.cuh, so a conversion here and on a CPU is the same.
#pragma once

#include "element.cuh"

namespace stretto {

template <class T, class W>
struct OneOf {
  __device__ static float load(long long at, unsigned nth) {
    return W::widen(reinterpret_cast<const T*>(at)[nth]);
  }
  __device__ static void store(long long at, unsigned nth, float value) {
    float all[32 / W::bits] = {value};
    reinterpret_cast<T*>(at)[nth] = static_cast<T>(W::word(all));
  }
};

struct OneFloat {
  __device__ static float load(long long at, unsigned nth) {
    return reinterpret_cast<const float*>(at)[nth];
  }
  __device__ static void store(long long at, unsigned nth, float value) {
    reinterpret_cast<float*>(at)[nth] = value;
  }
};

using One_float32 = OneFloat;
using One_float16 = OneOf<u16, Half>;
using One_bfloat16 = OneOf<u16, Brain>;
using One_float8_e4m3fn = OneOf<u8, E4M3>;
using One_float8_e5m2 = OneOf<u8, E5M2>;

}  // namespace stretto
