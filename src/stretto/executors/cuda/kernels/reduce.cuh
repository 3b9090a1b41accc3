// reduce.cuh -- operators, on vectors of any element type.
//
// Values are combined left to right in `Wide` and rounded once. Minimum and maximum
// carry NaN, and keep the second of equals. An average is a sum that is divided once,
// after it was rounded, by `finish`. No reassociation, no contraction: the same inputs
// in the same order give the same bits everywhere.
#pragma once

#include "element.cuh"

namespace stretto {

template <class T>
__device__ __forceinline__ bool is_nan(T v) {
  return v != v;
}

__device__ __forceinline__ Complex64 operator+(Complex64 a, Complex64 b) {
  return {a.re + b.re, a.im + b.im};
}
__device__ __forceinline__ Complex128 operator+(Complex128 a, Complex128 b) {
  return {a.re + b.re, a.im + b.im};
}
__device__ __forceinline__ Complex64 operator*(Complex64 a, Complex64 b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ __forceinline__ Complex128 operator*(Complex128 a, Complex128 b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

// Signed integers wrap like unsigned ones.
__device__ __forceinline__ int add(int a, int b) {
  return static_cast<int>(static_cast<u32>(a) + static_cast<u32>(b));
}
__device__ __forceinline__ i64 add(i64 a, i64 b) {
  return static_cast<i64>(static_cast<u64>(a) + static_cast<u64>(b));
}
__device__ __forceinline__ bool add(bool a, bool b) { return a || b; }
template <class T>
__device__ __forceinline__ T add(T a, T b) {
  return a + b;
}
__device__ __forceinline__ int multiply(int a, int b) {
  return static_cast<int>(static_cast<u32>(a) * static_cast<u32>(b));
}
__device__ __forceinline__ i64 multiply(i64 a, i64 b) {
  return static_cast<i64>(static_cast<u64>(a) * static_cast<u64>(b));
}
__device__ __forceinline__ bool multiply(bool a, bool b) { return a && b; }
template <class T>
__device__ __forceinline__ T multiply(T a, T b) {
  return a * b;
}

struct Sum {
  static constexpr bool averages = false;
  template <class T>
  __device__ static T apply(T a, T b) {
    return add(a, b);
  }
};
struct Avg : Sum {
  static constexpr bool averages = true;
  template <int RANKS>
  static constexpr int divisor = RANKS;
};
// Of a collective among N of the ranks.
template <int N>
struct AvgOf : Sum {
  static constexpr bool averages = true;
  template <int RANKS>
  static constexpr int divisor = N;
};
struct Prod {
  static constexpr bool averages = false;
  template <class T>
  __device__ static T apply(T a, T b) {
    return multiply(a, b);
  }
};
struct Min {
  static constexpr bool averages = false;
  template <class T>
  __device__ static T apply(T a, T b) {
    return (a < b || is_nan(a)) ? a : b;
  }
};
struct Max {
  static constexpr bool averages = false;
  template <class T>
  __device__ static T apply(T a, T b) {
    return (a > b || is_nan(a)) ? a : b;
  }
};
struct And {
  static constexpr bool averages = false;
  template <class T>
  __device__ static T apply(T a, T b) {
    return a & b;
  }
};
struct Or {
  static constexpr bool averages = false;
  template <class T>
  __device__ static T apply(T a, T b) {
    return a | b;
  }
};
struct Xor {
  static constexpr bool averages = false;
  template <class T>
  __device__ static T apply(T a, T b) {
    return a ^ b;
  }
};

// Combine N vectors, in their order.
template <class E, class Op, u32 N>
__device__ __forceinline__ Vec combine(const Vec* parts) {
  if constexpr (N == 1) {
    return parts[0];
  } else {
    typename E::Wide total[E::lanes], next[E::lanes];
    E::unpack(parts[0], total);
#pragma unroll
    for (u32 n = 1; n < N; ++n) {
      E::unpack(parts[n], next);
#pragma unroll
      for (u32 k = 0; k < E::lanes; ++k) total[k] = Op::apply(total[k], next[k]);
    }
    return E::pack(total);
  }
}

template <int N, class T>
__device__ __forceinline__ T divide(T v) {
  return v / static_cast<T>(N);
}
// As NumPy divides by a complex number without imaginary part.
template <int N>
__device__ __forceinline__ Complex64 divide(Complex64 v) {
  const float scale = 1.0f / N;
  return {(v.re + v.im * 0.0f) * scale, (v.im - v.re * 0.0f) * scale};
}
template <int N>
__device__ __forceinline__ Complex128 divide(Complex128 v) {
  const double scale = 1.0 / N;
  return {(v.re + v.im * 0.0) * scale, (v.im - v.re * 0.0) * scale};
}

// The final value of a rounded sum over all of `RANKS` ranks, or over some.
template <class E, class Op, int RANKS>
__device__ __forceinline__ Vec finish(Vec sum) {
  if constexpr (!Op::averages) {
    return sum;
  } else {
    typename E::Wide value[E::lanes];
    E::unpack(sum, value);
#pragma unroll
    for (u32 k = 0; k < E::lanes; ++k) {
      value[k] = divide<Op::template divisor<RANKS>>(value[k]);
    }
    return E::pack(value);
  }
}

}  // namespace stretto
