// stream.cuh -- what runs before and after us on the stream.
//
// A launch may begin while the kernel before it ends (programmatic dependent launch, from
// sm_90 on): its blocks are placed, and then wait here, before anything that kernel could
// have written. Launches that were not asked to begin early pass at once.
//
//   after_earlier_work   everything before us on the stream is complete and visible
//   let_next_begin       the next launch may be placed, once all our blocks said so; that
//                        all of them are resident is why nobody can starve them
#pragma once

#include "memory.cuh"

namespace stretto {

__device__ __forceinline__ void after_earlier_work() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace stretto
