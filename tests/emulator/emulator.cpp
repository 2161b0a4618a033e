// The fibers behind emulator.h. Compiled without ThreadSanitizer, and reported to it by hand: every
// fiber is a thread of its own to it, ordered with others by barriers alone. Where one fiber is
// switched for another no order is implied, so an access that only luck orders is a race.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>

#if defined(OASIS_TSAN)
extern "C" {
void* __tsan_get_current_fiber();
void* __tsan_create_fiber(unsigned flags);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#else
static void* __tsan_get_current_fiber() { return nullptr; }
static void* __tsan_create_fiber(unsigned) { return nullptr; }
static void __tsan_switch_to_fiber(void*, unsigned) {}
static void __tsan_acquire(void*) {}
static void __tsan_release(void*) {}
#endif
constexpr unsigned kNoSync = 1;

// Saves the callee-saved registers and the stack pointer, continues on the other stack.
#if defined(__x86_64__)
extern "C" void emulator_switch(void** save, void* load);
asm(R"(
.text
.globl emulator_switch
.type emulator_switch, @function
emulator_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch, .-emulator_switch
)");
#else
#include <ucontext.h>
#endif

namespace emulator {
namespace {

constexpr size_t kStack = 256 * 1024;
constexpr size_t kDefaultShared = 48 * 1024;

// A way to continue: a stack pointer, or where there is no assembly for the machine a ucontext.
struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
  void prepare(char* stack, void (*entry)()) {
    void** top = reinterpret_cast<void**>(stack + kStack) - 2;
    *top = reinterpret_cast<void*>(entry);  // after the return the stack is as after a call
    stack_pointer = top - 6;
  }
  static void change(Context& from, Context& to) {
    emulator_switch(&from.stack_pointer, to.stack_pointer);
  }
#else
  ucontext_t context;
  void prepare(char* stack, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = kStack;
    makecontext(&context, entry, 0);
  }
  static void change(Context& from, Context& to) { swapcontext(&from.context, &to.context); }
#endif
};

enum class State { ready, at_barrier, in_warp, done };

struct Warp {
  uint64_t slots[2][32];  // the values of this meeting and of the one before
  int arrived = 0;
  unsigned meetings = 0;
  const char* file = nullptr;
  int line = 0;
};

struct Fiber {
  Thread thread;
  Context context;
  State state = State::ready;
  const char* file = nullptr;
  int line = 0;
  int number = 0;
  void* tsan = nullptr;
};

// What a fiber runs on, kept for the fibers of later blocks: making one is slow.
struct Seat {
  char* stack;
  void* tsan;
};

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  unsigned char* shared = nullptr;
  unsigned barriers = 0;
  char tokens[2];  // what barriers order through; two, so that the next one is not mixed in

  ~Block() { free(shared); }
};

#if defined(OASIS_TSAN)
constexpr unsigned kSeatings = 2;
#else
constexpr unsigned kSeatings = 1;
#endif
std::vector<Seat> all_seats[kSeatings];
Context scheduler;
void* scheduler_tsan;
Fiber* current;
Block* block_now;
const std::function<void()>* body_now;
char kernel_begin, kernel_end;  // what orders a kernel with its launcher
std::string dropped_file;
int dropped_line = 0;
Order order_now = Order::forward;
int processors_now = 3;
size_t shared_limit = 227 * 1024;
std::unordered_map<const void*, size_t> allowed_shared;
cudaError_t last_error = cudaSuccess;
int device_now = 1;  // the memory of all tests is on device 0: launchers must go there

[[noreturn]] void fail(const char* what, const char* file, int line) {
  std::fprintf(stderr, "emulator: %s at %s:%d\n", what, file ? file : "?", line);
  std::abort();
}

bool dropped(const char* file, int line) {
  if (line != dropped_line || dropped_file.empty()) return false;
  const std::string name(file);
  return name.size() >= dropped_file.size() &&
         name.compare(name.size() - dropped_file.size(), std::string::npos, dropped_file) == 0;
}

void wait_in(State state, const char* file, int line) {
  Fiber* mine = current;
  mine->state = state;
  mine->file = file;
  mine->line = line;
  __tsan_switch_to_fiber(scheduler_tsan, kNoSync);
  Context::change(mine->context, scheduler);
}

void fiber_main() {
  __tsan_acquire(&kernel_begin);
  (*body_now)();
  Fiber* mine = current;
  if (!mine->thread.issued.empty()) fail("an asynchronous copy was never committed", "exit", 0);
  for (const auto& batch : mine->thread.batches)
    if (!batch.empty()) fail("an asynchronous copy was never waited for", "exit", 0);
  __tsan_release(&kernel_end);
  wait_in(State::done, "exit", 0);
}

void run(Fiber* fiber) {
  current = fiber;
  __tsan_switch_to_fiber(fiber->tsan, kNoSync);
  Context::change(scheduler, fiber->context);
}

// Nobody can run on their own any more: all must be at the same barrier.
void release(Block& block) {
  const Fiber* first = nullptr;
  for (const auto& f : block.fibers)
    if (f->state != State::done) first = first ? first : f.get();
  for (const auto& f : block.fibers) {
    if (f->state == State::in_warp)
      fail("a warp waits for lanes that do not come", f->file, f->line);
    if (f->state == State::done)
      fail("a thread left while others wait at a barrier", first->file, first->line);
    if (f->line != first->line || std::string(f->file) != first->file)
      fail("threads of one block wait at different barriers", f->file, f->line);
  }
  ++block.barriers;
  for (const auto& f : block.fibers) f->state = State::ready;
}

// To ThreadSanitizer a seat is a thread, and what it did for an earlier block is ordered with all
// that a barrier of this block orders. So consecutive blocks take different seats.
const Seat& seat_of(unsigned thread, unsigned block) {
  std::vector<Seat>& seats = all_seats[block % kSeatings];
  while (seats.size() <= thread) {
    void* stack = mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED) fail("no memory for a stack", __FILE__, __LINE__);
    seats.push_back({static_cast<char*>(stack), __tsan_create_fiber(0)});
  }
  return seats[thread];
}

void run_block(Block& block, dim3 grid, dim3 size, dim3 index, size_t shared,
               std::mt19937& random) {
  block_now = &block;
  // Exactly as long as asked for, so that AddressSanitizer sees its end; all NaN.
  block.shared = static_cast<unsigned char*>(aligned_alloc(128, (shared + 127) / 128 * 128 + 128));
  std::fill_n(block.shared, shared, static_cast<unsigned char>(0xff));
  OASIS_POISON(block.shared + shared, (shared + 127) / 128 * 128 + 128 - shared);
  block.warps.resize((size.x + 31) / 32);
  std::vector<Fiber*> turns;
  for (unsigned t = 0; t < size.x; ++t) {
    auto fiber = std::make_unique<Fiber>();
    fiber->thread.index = dim3(t, 0, 0);
    fiber->thread.block = index;
    fiber->thread.block_size = size;
    fiber->thread.grid_size = grid;
    fiber->number = int(t);
    const Seat& seat = seat_of(t, index.x + index.y * grid.x);
    fiber->context.prepare(seat.stack, fiber_main);
    fiber->tsan = seat.tsan;
    turns.push_back(fiber.get());
    block.fibers.push_back(std::move(fiber));
  }
  __tsan_release(&kernel_begin);  // the fibers may read what was made for them
  if (order_now == Order::backward) std::reverse(turns.begin(), turns.end());
  for (bool alive = true; alive;) {
    if (order_now == Order::shuffled) std::shuffle(turns.begin(), turns.end(), random);
    bool ran = false;
    for (Fiber* fiber : turns)
      if (fiber->state == State::ready) run(fiber), ran = true;
    alive = false;
    for (const Fiber* fiber : turns) alive |= fiber->state != State::done;
    if (alive && !ran) release(block);
  }
}

}  // namespace

Thread& self() { return current->thread; }
unsigned char* shared_memory() { return block_now->shared; }

void launch(const void* kernel, dim3 grid, dim3 block, size_t shared,
            const std::function<void()>& body) {
  if (device_now != 0) fail("a launch on the wrong device", __FILE__, __LINE__);
  const auto allowed = allowed_shared.find(kernel);
  const size_t most = allowed == allowed_shared.end() ? kDefaultShared : allowed->second;
  if (shared > most || block.x < 1 || block.x > 1024 || block.y != 1 || block.z != 1 ||
      grid.y > 65535 || grid.x < 1 || grid.y < 1) {
    last_error = cudaErrorInvalidValue;
    return;
  }
  body_now = &body;
  scheduler_tsan = __tsan_get_current_fiber();
  std::mt19937 random(20240607);
  std::vector<std::unique_ptr<Block>> blocks;
  for (unsigned y = 0; y < grid.y; ++y)
    for (unsigned x = 0; x < grid.x; ++x) {
      blocks.push_back(std::make_unique<Block>());
      run_block(*blocks.back(), grid, block, dim3(x, y, 0), shared, random);
    }
  // Only now, and memory is freed after it: blocks of one launch are not ordered with one another.
  __tsan_acquire(&kernel_end);
}

void barrier(const char* file, int line) {
  if (dropped(file, line)) return;
  void* token = &block_now->tokens[block_now->barriers & 1];
  __tsan_release(token);
  wait_in(State::at_barrier, file, line);
  __tsan_acquire(token);
}

const uint64_t* meet(unsigned mask, const void* value, size_t bytes, bool orders_memory,
                     const char* file, int line) {
  static const uint64_t nothing[32] = {};
  if (orders_memory && dropped(file, line)) return nothing;
  const int lane = current->number % 32;
  Warp& warp = block_now->warps[size_t(current->number / 32)];
  if (mask != 0xffffffffu) fail("only whole warps meet here", file, line);
  if (warp.arrived == 0) {
    warp.file = file;
    warp.line = line;
  } else if (warp.line != line || std::string(warp.file) != file) {
    fail("the lanes of a warp meet at different places", file, line);
  }
  uint64_t* slots = warp.slots[warp.meetings & 1];
  const auto* from = static_cast<const unsigned char*>(value);
  auto* to = reinterpret_cast<unsigned char*>(slots + lane);
  for (size_t i = 0; i < bytes; ++i) to[i] = from[i];
  void* token = slots + 0;
  if (orders_memory) __tsan_release(token);
  if (++warp.arrived < 32) {
    wait_in(State::in_warp, file, line);
  } else {
    warp.arrived = 0;
    ++warp.meetings;
    const size_t first = size_t(current->number / 32) * 32;
    for (size_t i = first; i < first + 32; ++i) block_now->fibers[i]->state = State::ready;
  }
  if (orders_memory) __tsan_acquire(token);
  return slots;
}

void drop_barrier(const char* file, int line) {
  dropped_file = file;
  dropped_line = line;
}
void schedule(Order order) { order_now = order; }
void limits(int processors, size_t shared_bytes) {
  processors_now = processors;
  shared_limit = shared_bytes;
}

}  // namespace emulator

cudaError_t cudaGetLastError() {
  const cudaError_t error = emulator::last_error;
  emulator::last_error = cudaSuccess;
  return error;
}
cudaError_t cudaGetDevice(int* device) {
  *device = emulator::device_now;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device != 0 && device != 1) return cudaErrorInvalidValue;
  emulator::device_now = device;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  *value = attribute == cudaDevAttrMultiProcessorCount ? emulator::processors_now
                                                       : int(emulator::shared_limit);
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute, int value) {
  if (value < 0 || size_t(value) > emulator::shared_limit) return cudaErrorInvalidValue;
  emulator::allowed_shared[kernel] = size_t(value);
  return cudaSuccess;
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : "invalid argument";
}
