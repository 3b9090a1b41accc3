// Sums that C++ starts on a group of stretto's, begun here where they are known.
//
// PyTorch calls a group that is written in Python by way of a trampoline, and its Work
// and its Future by two more. DDP does so for every bucket, on the thread that enqueues
// the rest of the backward pass, and small steps take as long as that thread does. So
// here is what Python has made known by a tensor's place; all else goes on to Python.

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <torch/csrc/distributed/c10d/PyProcessGroup.hpp>
#include <torch/csrc/profiler/orchestration/observer.h>

#include <deque>
#include <map>
#include <memory>
#include <vector>

namespace {

constexpr auto kGpu = c10::DeviceType::CUDA;
constexpr int kNative = 1 << 9;  // what known_places.py adds to an operator's number

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(kGpu).getStream(device);
}

// A call on one place: what a tensor there must be, and how it is begun.
struct Place {
  py::object again;  // makes it, given an event and a stream; False: it cannot
  py::object hear;   // raises what launches so far have met
  py::object fail;   // raises an error as torch.distributed knows it
  const int64_t count;
  const at::ScalarType dtype;
  const c10::Stream side;  // the group's own stream, on which it runs

  Place(py::object again, py::object hear, py::object fail, const at::Tensor& like,
        int64_t stream)
      : again(std::move(again)), hear(std::move(hear)), fail(std::move(fail)),
        count(like.numel()), dtype(like.scalar_type()),
        side(c10::Stream::unpack3(stream, like.device().index(), kGpu)) {}

  ~Place() {
    if (Py_IsInitialized()) {
      const py::gil_scoped_acquire lock;
      again = hear = fail = py::object();
    } else {  // at the end of the process there is nothing left to give back to
      again.release(), hear.release(), fail.release();
    }
  }

  bool holds(const at::Tensor& x) const {
    return x.numel() == count && x.scalar_type() == dtype && x.is_contiguous() &&
        !x.is_neg() && !x.is_conj() && !x.key_set().has(c10::DispatchKey::Python);
  }
};

// The end of a call on the GPU, and what is held until the GPU has passed it.
struct End {
  c10::Event event{kGpu};
  at::Tensor held;
};

// Ends on one stream, in order. Who uses it holds the interpreter's lock.
class Ends {
 public:
  // Return an end that nobody needs; its event exists.
  std::shared_ptr<End> take(const c10::Stream& side) {
    while (!running_.empty() && running_.front()->event.query()) {
      auto passed = std::move(running_.front());
      running_.pop_front();
      passed->held.reset();
      if (passed.use_count() == 1) spare_.push_back(std::move(passed));
    }
    if (spare_.empty()) {
      auto made = std::make_shared<End>();
      made->event.record(side);
      return made;
    }
    auto found = std::move(spare_.back());
    spare_.pop_back();
    return found;
  }

  void put_back(std::shared_ptr<End> end) { spare_.push_back(std::move(end)); }
  void hold(std::shared_ptr<End> end) { running_.push_back(std::move(end)); }

 private:
  std::deque<std::shared_ptr<End>> running_;
  std::vector<std::shared_ptr<End>> spare_;
};

// A call that has been begun. `wait` holds the caller's stream, never the host.
class Begun : public c10d::Work {
 public:
  Begun(std::shared_ptr<Place> place, std::shared_ptr<End> end, const at::Tensor& x)
      : Work(-1, c10d::OpType::ALLREDUCE), place_(std::move(place)),
        end_(std::move(end)), tensors_{x} {}

  bool wait(std::chrono::milliseconds) override {
    end_->event.block(current_stream(place_->side.device()));
    const py::gil_scoped_acquire lock;
    try {
      place_->hear();
    } catch (py::error_already_set& met) {
      place_->fail(met.value());
    }
    return true;
  }
  void synchronize() override { wait(kNoTimeout); }
  void blockCurrentStream() override { wait(kNoTimeout); }
  bool isCompleted() override { return end_->event.query(); }
  bool isSuccess() const override { return end_->event.query(); }
  std::vector<at::Tensor> result() override { return tensors_; }

  // Return a Future whose users' streams wait for the call.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (!future_) {
      const c10::StreamGuard behind(place_->side);
      future_ = c10::make_intrusive<c10::ivalue::Future>(
          c10::ListType::create(c10::TensorType::get()),
          std::vector<c10::Device>{place_->side.device()});
      future_->markCompleted(c10::IValue(tensors_));
    }
    return future_;
  }

 private:
  const std::shared_ptr<Place> place_;
  const std::shared_ptr<End> end_;
  const std::vector<at::Tensor> tensors_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// A group that is written in Python, but for sums that are known.
class Group : public c10d::PyProcessGroup {
 public:
  using PyProcessGroup::PyProcessGroup;

  ~Group() override {
    // After the interpreter, at the end of the process, the driver is gone, too.
    if (!Py_IsInitialized()) ends_.release();
  }

  c10::intrusive_ptr<c10d::Work> allreduce(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) override {
    if (tensors.size() == 1 && opts.asyncOp && tensors[0].device().type() == kGpu &&
        !torch::profiler::impl::profilerEnabled()) {
      const py::gil_scoped_acquire lock;
      const py::handle self = py::detail::get_object_handle(
          static_cast<c10d::ProcessGroup*>(this), type_of_groups());
      if (self) {
        auto begun = begin(self, tensors[0], static_cast<int>(opts.reduceOp.op_));
        if (begun) return begun;
      }
    }
    return PyProcessGroup::allreduce(tensors, opts);
  }

  // Begin a sum that is known, or return nothing. Python calls it as C++ does.
  c10::intrusive_ptr<c10d::Work> begin(py::handle self, const at::Tensor& x, int op) {
    // On the legacy stream alone: no graph's capture can be there.
    if (current_stream(x.device()).id() != 0) return {};
    const auto place = find(self, x, op);
    if (!place || !place->holds(x)) return {};
    const py::object calls = self.attr("_calls"), lock = self.attr("_lock");
    if (py::len(calls) || !lock.attr("acquire")(false).cast<bool>()) return {};
    auto& ends = (*ends_)[place->side.device_index()];
    auto end = ends.take(place->side);
    bool launched = false;
    try {
      launched = place->again(reinterpret_cast<intptr_t>(end->event.eventId()), 0)
                     .cast<bool>();
    } catch (py::error_already_set& met) {
      lock.attr("release")();
      place->fail(met.value());
    }
    lock.attr("release")();
    if (!launched) {
      ends.put_back(std::move(end));
      return {};
    }
    end->held = x;
    ends.hold(end);
    return c10::make_intrusive<Begun>(place, std::move(end), x);
  }

  static const py::detail::type_info* type_of_groups() {
    static const auto* type = py::detail::get_type_info(typeid(c10d::ProcessGroup));
    return type;
  }

 private:
  // Return what the group has made known of a place, or nothing.
  static std::shared_ptr<Place> find(py::handle self, const at::Tensor& x, int op) {
    const py::object places = self.attr("_places");
    const auto key =
        py::make_tuple(reinterpret_cast<intptr_t>(x.data_ptr()), kNative + op);
    PyObject* found = PyDict_GetItem(places.ptr(), key.ptr());
    return found ? py::cast<std::shared_ptr<Place>>(py::handle(found)) : nullptr;
  }

  std::unique_ptr<std::map<int, Ends>> ends_ = std::make_unique<std::map<int, Ends>>();
};

}  // namespace

PYBIND11_MODULE(group, module) {
  py::class_<Place, std::shared_ptr<Place>>(module, "Place")
      .def(py::init<py::object, py::object, py::object, const at::Tensor&, int64_t>());
  // Be ProcessGroup.__init__ for an object of a class that is derived in Python.
  module.def("init", [](const py::object& self, int rank, int size) {
    auto* made = reinterpret_cast<py::detail::instance*>(self.ptr());
    auto value = made->get_value_and_holder(Group::type_of_groups());
    value.value_ptr() = static_cast<c10d::ProcessGroup*>(new Group(rank, size));
    value.type->init_instance(made, nullptr);
  });
  module.def("begin", [](const py::object& self, const at::Tensor& x, int op) {
    return static_cast<Group*>(self.cast<c10d::ProcessGroup*>())->begin(self, x, op);
  });
}
