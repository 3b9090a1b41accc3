// lane.cuh -- one thread's view of the lane it runs: who it is, when it is, what is where.
//
// `Config` is the part of a plan that is known when its kernel is generated. A lane of a
// block runs the same steps in every epoch; `ok` turns false when it gave up, and then
// every step is skipped but its barriers.
#pragma once

#include "packet.cuh"
#include "reduce.cuh"
#include "steps.cuh"
#include "stream.cuh"
#include "vector.cuh"

namespace stretto {

constexpr int NOBODY = -1;

template <class Config>
struct Lane {
  using C = Config;
  using E = typename Config::Element;
  using Op = typename Config::Operator;

  const Params& p;
  u32 thread;  // among the plan's threads: clerks are not counted
  u32 block;
  u64 epoch = 0, settled = 0;
  bool entered = false;
  bool ok = true;
  int step = 0;
  Diary diary;
  struct {
    int at;  // step << 8 | peer: it lives in a register to the end
    u64 got, want;
  } missed = {NOBODY, 0, 0};

  __device__ __forceinline__ Lane(const Params& params, u32 block_)
      : p(params), thread(threadIdx.x), block(block_) {}

  // Go on when what came before us on the stream is complete. Until then nothing that
  // anybody wrote is touched, and whatever can be computed is.
  __device__ __forceinline__ void enter() {
    const bool before = entered;
    entered = true;  // whatever follows need not ask
    if (before) return;
    after_earlier_work();
    const u32 worker = block * C::lanes + C::lane;
    epoch = load_relaxed_word(control_word(p.control[C::rank], EPOCHS, worker));
    diary.open(p.control[C::rank], p.fingerprint, epoch, block, C::lane, thread);
  }

  // --- where things are

  __device__ __forceinline__ Slice slice(i64 atom, u32 iteration, u32 turn) const {
    return slice_of<E::size>(p, atom, iteration * C::blocks + block, turn);
  }
  __device__ auto input(i64 element) const {
    return Caller<E::grain, C::shared, false>{p.input[C::rank] + element * E::size};
  }
  __device__ auto output(i64 element) const {
    return Caller<E::grain, C::shared, true>{p.output[C::rank] + element * E::size};
  }
  template <int PEER>
  __device__ auto input_of(i64 element) const {
    return Caller<E::grain, true, false>{p.input[PEER] + element * E::size};
  }
  template <int PEER>
  __device__ auto output_of(i64 element) const {
    return Caller<E::grain, true, true>{p.output[PEER] + element * E::size};
  }
  template <int OWNER>
  __device__ Staged stage(u32 pos) const {
    const u64 half = epoch & 1 ? p.stage_half : 0;
    return {p.stage[OWNER] + half + unit<OWNER>(pos, p.stage_unit)};
  }
  // A unit of ours that a rank on another host puts into.
  __device__ Staged inbox(u32 pos) const {
    const u64 half = epoch & 1 ? p.stage_half : 0;
    return {p.inbox + half + unit<C::rank>(pos, p.stage_unit)};
  }
  // Where a unit of a rank lies in its staging: for ranks on other hosts.
  template <int OWNER>
  __device__ u64 place_of(u32 pos) const {
    return (epoch & 1 ? p.stage_half : 0) + unit<OWNER>(pos, p.stage_unit);
  }
  template <int PEER, int CALL>
  __device__ PacketTo<PEER, CALL> packet_to(u32 pos) const {
    return {p.packets[PEER] + unit<PEER>(pos, p.packet_unit)};
  }
  template <int FROM, int FROM_LANE, int CALL, bool KEPT = false>
  __device__ PacketFrom<FROM, FROM_LANE, CALL, KEPT> packet_from(u32 pos) const {
    return {packets<C::rank>(pos)};
  }

  // --- what the operands ask

  __device__ u64* escape_to(u32 peer) const {
    return escape(p.control[peer], C::rank, C::lane);
  }
  __device__ u64* escape_from(u32 from, u32 lane) const {
    return escape(p.control[C::rank], from, lane);
  }
  // Where packets of this epoch lie in packet memory. Between the loads of a move and
  // its stores, `settle` keeps the compiler from asking for the epoch any earlier: it
  // comes from memory too, and the loads need not wait for it.
  __device__ u64 packet_half() const { return settled & 1 ? p.packet_half : 0; }
  __device__ __forceinline__ void settle() {
    settled = epoch;
    asm volatile("" : "+l"(settled));
  }
  // Give up waiting for `peer`: every step from here on is skipped.
  __device__ __forceinline__ void leave(int peer, u64 got, u64 want) {
    ok = false;
    missed = {step << 8 | peer, got, want};
  }
  // At the end of an epoch, where it costs nothing: say why.
  __device__ __forceinline__ void explain() {
    if (missed.at == NOBODY) return;
    const Place at{C::rank, static_cast<int>(block), C::lane, static_cast<int>(thread),
                   epoch};
    give_up<C::ranks>(p, at, TIMEOUT, missed.at >> 8, missed.at & 0xff, missed.got,
                      missed.want);
    missed.at = NOBODY;
  }

  // --- the lane's threads together. All of a warp come to the same barrier (`bar` is
  // aligned): threads that have diverged meet before it. The other form would send such
  // a warp to a second copy of the instruction, twice the code, which no tool can check.

  __device__ __forceinline__ void barrier() const {
    asm volatile("bar.sync 1, %0;" ::"n"(C::threads) : "memory");
  }
  // A barrier that leaves `ok` the same for all: false when it is false for any.
  __device__ __forceinline__ void agree() {
    u32 failed;
    asm volatile(
        "{\n .reg .pred p, q;\n setp.eq.u32 p, %1, 0;\n"
        " bar.red.or.pred q, 1, %2, p;\n selp.u32 %0, 1, 0, q;\n}"
        : "=r"(failed)
        : "r"(static_cast<u32>(ok)), "n"(C::threads)
        : "memory");
    ok = failed == 0;
  }

 private:
  template <int OWNER>
  __device__ u64 unit(u32 pos, u64 nbytes) const {
    return static_cast<u64>(block * C::units(OWNER) + pos) * static_cast<u32>(nbytes);
  }
  template <int OWNER>
  __device__ u64 packets(u32 pos) const {
    const u64 half = epoch & 1 ? p.packet_half : 0;
    return p.packets[OWNER] + half + unit<OWNER>(pos, p.packet_unit);
  }
  __device__ u64* escape(u64 control, u32 from, u32 lane) const {
    const u32 flat = (block * C::lanes + lane) * C::threads + thread;
    return control_word(control, ESCAPED, static_cast<u64>(from) * ESCAPES + flat);
  }
};

}  // namespace stretto
