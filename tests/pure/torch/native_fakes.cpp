// The compiled part of a group, and a GPU that only says what it is told.

#include "group.cpp"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <set>

namespace {

std::vector<std::string> told;
std::set<int64_t> passed;
int64_t events = 100;
thread_local int64_t now = 0;

void tell(const std::string& what, int64_t event, int64_t stream) {
  told.push_back(what + " " + std::to_string(event) + " " + std::to_string(stream));
}

struct Gpu final : c10::impl::DeviceGuardImplInterface {
  c10::Device one{kGpu, 0};
  c10::DeviceType type() const override { return kGpu; }
  c10::Device exchangeDevice(c10::Device) const override { return one; }
  c10::Device getDevice() const override { return one; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  c10::Stream getStream(c10::Device) const override {
    return c10::Stream::unpack3(now, 0, kGpu);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto before = getStream(one);
    now = stream.id();
    return before;
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    if (!*event) *event = reinterpret_cast<void*>(++events);
    tell("record", reinterpret_cast<int64_t>(*event), stream.id());
  }
  void block(void* event, const c10::Stream& stream) const override {
    tell("block", reinterpret_cast<int64_t>(event), stream.id());
  }
  bool queryEvent(void* event) const override {
    return passed.count(reinterpret_cast<int64_t>(event)) > 0;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {}
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};

C10_REGISTER_GUARD_IMPL(CUDA, Gpu);

at::Tensor tensor(int64_t count, at::ScalarType dtype) {
  auto* memory = new double[static_cast<size_t>(count)];
  c10::DataPtr data(
      memory, memory, [](void* p) { delete[] static_cast<double*>(p); },
      c10::Device(kGpu, 0));
  c10::Storage storage(c10::Storage::use_byte_size_t(), 8 * count, std::move(data));
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return made;
}

// Another tensor at the same place.
at::Tensor alias(const at::Tensor& x, const std::vector<int64_t>& sizes,
                 const std::vector<int64_t>& strides, at::ScalarType dtype, bool neg) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(x.storage()), c10::DispatchKeySet(c10::DispatchKey::CUDA),
      c10::scalarTypeToTypeMeta(dtype));
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  made._set_neg(neg);
  return made;
}

}  // namespace

PYBIND11_MODULE(fakes, module) {
  module.def("tensor", &tensor);
  module.def("alias", &alias);
  module.def("told", [] { return std::exchange(told, {}); });
  module.def("pass_all", [] {
    for (int64_t event = 0; event <= events; ++event) passed.insert(event);
  });
  module.def("forget_passed", [] { passed.clear(); });
  module.def("use_stream", [](int64_t id) { now = id; });
  // Sum as C++ does: DDP's reducer has no Python on its thread.
  module.def("sum", [](const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                       std::vector<at::Tensor> tensors, bool started) {
    c10d::AllreduceOptions options;
    options.asyncOp = started;
    const py::gil_scoped_release unlocked;
    return group->allreduce(tensors, options);
  });
  // Let the last that holds a call's place be a thread without the interpreter.
  module.def("drop", [](c10::intrusive_ptr<c10d::Work> work) {
    const py::gil_scoped_release unlocked;
    work.reset();
  });
}
