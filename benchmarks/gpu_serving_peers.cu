// gpu_serving_peers.cu -- the kernels of serving engines, called as gpu_serving.py wants it.
//
// Their headers are used as they are, from a folder that is named when this is compiled
// (gpu_serving_build.py); nothing of them is here. One shared object, plain C calls.
#include <cstdint>

#include "flashinfer/comm/trtllm_allreduce_fusion.cuh"
#include "flashinfer/comm/vllm_custom_all_reduce.cuh"

namespace {

using Element = __nv_bfloat16;
namespace fusion = flashinfer::trtllm_allreduce_fusion;

// What a rank shares: flags, FlashInfer's three buffers, vLLM's signals and an input.
struct Slab {
  static constexpr size_t flags = 0;
  static constexpr size_t signals = 1 << 20;
  static constexpr size_t input = 2 << 20;
  static constexpr size_t sync = 8 << 20;
  static constexpr size_t lamport = 16 << 20;
  static constexpr int lamport_bytes = 8 << 20;
  static constexpr size_t all = lamport + 3ull * lamport_bytes;
};

struct State {
  int rank, ranks;
  void** workspace;
  vllm::RankSignals signals;
  vllm::RankData* inputs;
};

__global__ void fill(Element* at, size_t count, Element value) {
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += gridDim.x * blockDim.x) {
    at[i] = value;
  }
}

}  // namespace

extern "C" {

int serving_alloc(int device, void** slab, void* handle) {
  if (cudaSetDevice(device) != cudaSuccess) return 1;
  if (cudaMalloc(slab, Slab::all) != cudaSuccess) return 2;
  if (cudaMemset(*slab, 0, Slab::all) != cudaSuccess) return 3;
  char* base = static_cast<char*>(*slab);
  const __nv_bfloat16_raw negative_zero = {0x8000};
  fill<<<64, 256>>>(reinterpret_cast<Element*>(base + Slab::lamport),
                    3ull * Slab::lamport_bytes / sizeof(Element), Element(negative_zero));
  if (cudaDeviceSynchronize() != cudaSuccess) return 4;
  auto* one = static_cast<cudaIpcMemHandle_t*>(handle);
  return cudaIpcGetMemHandle(one, *slab) == cudaSuccess ? 0 : 5;
}

int serving_import(const void* handle, void** slab) {
  const auto one = *static_cast<const cudaIpcMemHandle_t*>(handle);
  const auto lazily = cudaIpcMemLazyEnablePeerAccess;
  return cudaIpcOpenMemHandle(slab, one, lazily) == cudaSuccess ? 0 : 1;
}

void* serving_open(int rank, int ranks, void** slabs) {
  auto* state = new State{rank, ranks};
  void* words[8 * 3 + 1];
  vllm::RankData inputs = {};
  int books[5] = {0, 0, 0, Slab::lamport_bytes, 0};
  for (int r = 0; r < ranks; ++r) {
    char* base = static_cast<char*>(slabs[r]);
    words[r] = base + Slab::sync;
    words[ranks + r] = base + Slab::flags;
    words[2 * ranks + r] = base + Slab::lamport;
    state->signals.signals[r] = reinterpret_cast<vllm::Signal*>(base + Slab::signals);
    inputs.ptrs[r] = base + Slab::input;
  }
  void* counters;
  if (cudaMalloc(&counters, sizeof books) != cudaSuccess) return nullptr;
  if (cudaMalloc(&state->workspace, sizeof words) != cudaSuccess) return nullptr;
  if (cudaMalloc(&state->inputs, sizeof inputs) != cudaSuccess) return nullptr;
  words[3 * ranks] = counters;
  cudaMemcpy(counters, books, sizeof books, cudaMemcpyHostToDevice);
  cudaMemcpy(state->workspace, words, (3 * ranks + 1) * sizeof(void*),
             cudaMemcpyHostToDevice);
  cudaMemcpy(state->inputs, &inputs, sizeof inputs, cudaMemcpyHostToDevice);
  return cudaDeviceSynchronize() == cudaSuccess ? state : nullptr;
}

void* serving_input(void* slab) { return static_cast<char*>(slab) + Slab::input; }

// all_reduce + residual + RMSNorm (`norm` 1), or all_reduce alone into `out` (0).
int serving_flashinfer(void* opened, void* in, void* residual, void* weight, void* out,
                       float eps, int rows, int hidden, int norm, int at_end, int pdl,
                       void* stream) {
  auto* state = static_cast<State*>(opened);
  fusion::AllReduceFusionParams<Element> p = {};
  p.nranks = state->ranks;
  p.rank = state->rank;
  p.size = rows * hidden;
  p.hidden_dim = hidden;
  p.workspace = state->workspace;
  p.allreduce_in = in;
  p.allreduce_out = norm ? nullptr : out;
  p.residual_in = p.residual_out = residual;
  p.norm_out = norm ? out : nullptr;
  p.rms_gamma = weight;
  p.rms_eps = eps;
  p.use_oneshot = true;
  p.stream = static_cast<cudaStream_t>(stream);
  p.pattern = norm ? fusion::AllReduceFusionPattern::kARResidualRMSNorm
                   : fusion::AllReduceFusionPattern::kAllReduce;
  p.trigger_completion_at_end = at_end != 0;
  using fusion::AllReduceFusionPattern;
  const bool early = pdl != 0;
#define CALL(RANKS)                                                                     \
  (norm ? fusion::allreduce_fusion_kernel_launcher<                                     \
              AllReduceFusionPattern::kARResidualRMSNorm, Element, RANKS, true>(p, early) \
        : fusion::allreduce_fusion_kernel_launcher<AllReduceFusionPattern::kAllReduce,   \
                                                   Element, RANKS, true>(p, early))
  if (state->ranks == 2) return CALL(2);
  if (state->ranks == 4) return CALL(4);
  return -1;
#undef CALL
}

int serving_vllm(void* opened, void* out, int rows, int hidden, int blocks, int threads,
                 void* stream) {
  auto* state = static_cast<State*>(opened);
  const int cells = rows * hidden / 8;
  int many = (cells + threads - 1) / threads;
  if (many > blocks) many = blocks;
  auto* self = state->signals.signals[state->rank];
  auto* to = static_cast<Element*>(out);
  auto on = static_cast<cudaStream_t>(stream);
  if (state->ranks == 2) {
    vllm::cross_device_reduce_1stage<Element, 2><<<many, threads, 0, on>>>(
        state->inputs, state->signals, self, to, state->rank, cells);
  } else if (rows * hidden * 2 < 512 << 10) {
    vllm::cross_device_reduce_1stage<Element, 4><<<many, threads, 0, on>>>(
        state->inputs, state->signals, self, to, state->rank, cells);
  } else {
    vllm::cross_device_reduce_2stage<Element, 4><<<many, threads, 0, on>>>(
        state->inputs, state->signals, self, to, state->rank, cells);
  }
  return static_cast<int>(cudaGetLastError());
}
}
