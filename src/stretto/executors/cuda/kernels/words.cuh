// words.cuh -- what kernels and the host agree on.
// Written by scripts/words.py from words.py, which explains it; a test compares.
#pragma once

namespace stretto {

constexpr unsigned MAX_RANKS = 16;
constexpr unsigned MAX_BLOCKS = 256;
constexpr unsigned MAX_LANES = 4;
constexpr unsigned MAX_WORKERS = 1024;
constexpr unsigned CLERK = 32;
constexpr unsigned ESCAPES = 131072;
constexpr unsigned BOARD = 64;
constexpr unsigned HOST_SLOTS = 1024;
constexpr unsigned HOST_RING_BEGIN = 64;
constexpr unsigned STEP_BLOCKS = 16;
constexpr unsigned STEP_RECORDS = 4096;
constexpr unsigned STEP_WORKERS = 64;
constexpr unsigned WHOLE_CALL = 65535;
constexpr unsigned MOST_AXES = 8;

// Byte offsets in a rank's control memory.
constexpr unsigned long long BROKEN = 0;
constexpr unsigned long long ROLL = 128;
constexpr unsigned long long LAUNCHES = 384;
constexpr unsigned long long REQUESTS = 448;
constexpr unsigned long long EPOCHS = 512;
constexpr unsigned long long FLAGS = 8704;
constexpr unsigned long long SUMS = 532992;
constexpr unsigned long long ESCAPED = 1581568;

// Why a rank gave up.
enum Kind : unsigned { NONE, TIMEOUT, MISMATCH, TOLD, COUNTS };

// What a channel waited for.
enum Awaited : unsigned { A_STEP, A_SIGNAL, A_PACKET, A_CHOICE, A_CALL };

// One rank's parameters; bases are addresses as this rank maps them, by rank.
struct Params {
  unsigned long long input[MAX_RANKS];
  unsigned long long output[MAX_RANKS];
  unsigned long long stage[MAX_RANKS];
  unsigned long long packets[MAX_RANKS];
  unsigned long long control[MAX_RANKS];
  unsigned long long record;
  unsigned long long deadline_ns;
  unsigned long long tile;
  unsigned tiles;
  unsigned fingerprint;
  unsigned long long stage_unit;
  unsigned long long packet_unit;
  unsigned long long stage_half;
  unsigned long long packet_half;
  unsigned long long far;  // pinned: what ranks on other hosts write as they would in control memory
  unsigned long long inbox;  // pinned: what they put into our staging
  unsigned long long ring;  // pinned: requests to them
};
static_assert(sizeof(Params) == 728, "words.py");

// What the first thread to give up writes, once, in host memory.
struct Record {
  unsigned state;  // 0 nothing, 1 being written, 2 complete
  unsigned kind;
  int rank;
  int block;
  int lane;
  int thread;
  int step;  // of the lane; -1: entering; of counts: which, or -1 input, -2 output
  int peer;  // whom it waited for; -1: nobody by name
  unsigned absent;  // bit q: rank q has not entered this launch
  unsigned differ;  // bit q: rank q entered it with another fingerprint
  unsigned fingerprint;  // of the call that gave up: the host names its plan
  unsigned channel;  // what a channel waited for; 0: a step of a plan
  unsigned long long epoch;
  unsigned long long got;  // the flag's value, the peer's fingerprint or broken word
  unsigned long long want;
  unsigned long long launch;
  unsigned long long leave;  // written by the host: not 0 once everybody is to give up
};
static_assert(sizeof(Record) == 88, "words.py");

// What a kernel asks of the thread that serves ranks on other hosts.
struct HostRequest {
  unsigned long long turn;  // its number, from 1: written last
  unsigned long long peer;
  unsigned long long at;  // of staging
  unsigned long long nbytes;
  unsigned long long word;  // of control memory, from its beginning
  unsigned long long value;  // 0: no word
  unsigned long long spare;
  unsigned long long spare_too;
};
static_assert(sizeof(HostRequest) == 64, "words.py");

// When a step of a lane happened, by the device's clock.
struct StepRecord {
  unsigned long long what;  // fingerprint, step << 32, worker << 48
  unsigned long long epoch;  // of the call's first tile: the same on all ranks
  unsigned long long control;  // which set of flags of which communicator
  unsigned long long tile;
  unsigned long long begin;
  unsigned long long wait;
  unsigned long long end;
  unsigned long long spare;
};
static_assert(sizeof(StepRecord) == 64, "words.py");

// A channel of a block to a peer (channel.cuh).
struct ChannelWords {
  unsigned long long local;  // this rank's buffer
  unsigned long long remote;  // the peer's buffer, mapped here
  unsigned long long inbox;  // the word that the peer counts up, in our memory
  unsigned long long outbox;  // the word that we count up, in the peer's memory
  unsigned long long counts;  // ours alone: signals sent, signals seen
  unsigned long long calls;  // ours alone: calls of this block that have ended
  const Params* home;
  int rank;
  int peer;
};
static_assert(sizeof(ChannelWords) == 64, "words.py");

// The runs of a transfer (runs.cuh).
struct Runs {
  const long long* src_chunk;  // where each chunk begins, in every tensor
  const long long* dst_chunk;
  const long long* src_box;  // the address of each box's first element, in chunk 0
  const long long* dst_box;
  unsigned runs;
  unsigned boxes;
  unsigned box_runs;
  unsigned units;  // vectors, or elements, of a run
  unsigned size[MOST_AXES];
  long long src_step[MOST_AXES];
  long long dst_step[MOST_AXES];
  long long src;  // of one box and one chunk: where it begins, and no tables
  long long dst;
  unsigned long long* turns;  // blocks that have ended, and calls so far
  unsigned long long* word;  // gets the number of the call, where it is raised
};
static_assert(sizeof(Runs) == 240, "words.py");

// Parts that lie one after the other (parts.cuh).
struct Stacked {
  const char* first;
  char* out;
  unsigned long long step;  // bytes from a part to the next
  unsigned long long vectors;  // of 16 bytes, in each part
};
static_assert(sizeof(Stacked) == 32, "words.py");

// Pieces of tensors, whose elements are added up, and copied (mixed.cuh).
struct Mixed {
  const unsigned long long* pieces;  // source, copy or 0, bytes, sum << 8 | size
  unsigned* sums;
  unsigned count;
  unsigned unused;
};
static_assert(sizeof(Mixed) == 24, "words.py");

// Matrices whose blocks become FP8, each with a scale (mixed.cuh).
struct Quantised {
  const char* src;
  char* dst;
  float* scales;
  unsigned planes;
  unsigned rows;
  unsigned columns;
  unsigned block_rows;
  unsigned block_columns;
  unsigned unused;
};
static_assert(sizeof(Quantised) == 48, "words.py");

}  // namespace stretto
