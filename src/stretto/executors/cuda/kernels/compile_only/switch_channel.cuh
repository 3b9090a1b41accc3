// switch_channel.cuh -- COMPILE ONLY: reductions and broadcasts inside the switch.
//
// NVLink multicast is never used on any machine that we have: no address for these
// instructions can be made (comm.channels(kind="switch") is refused), and this header is
// outside the folder that kernels of ours are compiled with. It states what a switch
// channel would be, and is kept compiling.
//
//   reduce      the sum of everybody's vector at one offset, read through the switch
//   broadcast   one vector, stored in everybody's memory
//   signal      one more on a counter in everybody's memory (release, system scope)
#pragma once

#ifndef STRETTO_COMPILE_ONLY
#error "switch_channel.cuh is compile-only: NVLink multicast must not be executed"
#endif

#include "../memory.cuh"

namespace stretto {

struct SwitchChannel {
  u64 multicast;  // an address that means everybody's memory

  __device__ Vec reduce_bfloat16(u64 from) const {
    Vec v;
    asm volatile(
        "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.bf16x2 "
        "{%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(multicast + from)
        : "memory");
    return v;
  }
  __device__ Vec reduce_float16(u64 from) const {
    Vec v;
    asm volatile(
        "multimem.ld_reduce.relaxed.sys.global.add.acc::f32.v4.f16x2 "
        "{%0, %1, %2, %3}, [%4];"
        : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
        : "l"(multicast + from)
        : "memory");
    return v;
  }
  __device__ void broadcast(u64 to, Vec v) const {
    asm volatile("multimem.st.relaxed.sys.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                     multicast + to),
                 "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
  }
  __device__ void signal(u64 counter) const {
    asm volatile("multimem.red.release.sys.global.add.u64 [%0], %1;" ::"l"(multicast +
                                                                          counter),
                 "l"(1ull)
                 : "memory");
  }
};

}  // namespace stretto
