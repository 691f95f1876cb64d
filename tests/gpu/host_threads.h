// A CUDA device's threads on the host, for tests: gcodec's CUDA C++ kernels, compiled by a C++ compiler.
//
// Each thread of a block is a fiber with a stack of its own. One runs at a time, until it waits: for its block in
// __syncthreads, for its warp in a shuffle, or for another block in __nanosleep. It is an error if threads of a block wait
// for different things, if some return while others wait, if lanes of a warp ask for different shuffles, or not for all
// lanes. Blocks of the grid, warps and lanes take turns in rising order, in falling order, or in any. In any, warps overtake
// each other between their shuffles, and so do blocks, of which a few are resident at a time; in the other orders a block
// begins when the one before it has ended. It is an error if all resident blocks wait for another one: a device, too, may
// begin no further block before one of them ends. None of this may make a difference: so what one thread writes and another
// reads without waiting is found out. CHECK stops at an index that is out of bounds.
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__ static
#define CHECK(condition) \
    if (!(condition)) host_threads::fail("out of bounds: " #condition, __LINE__)

struct uint2 { unsigned x, y; } __attribute__((aligned(8)));
struct uint3 { unsigned x, y, z; };
struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct Index { unsigned x; };

static Index threadIdx, blockIdx;

namespace host_threads {

#ifndef RESIDENT_BLOCKS
#define RESIDENT_BLOCKS 3            // 1 where a kernel is called whose shared memory is a variable of its own
#endif
#ifndef STACK_BYTES
#define STACK_BYTES (1 << 16)
#endif
constexpr unsigned MOST = 256, STACK = STACK_BYTES;
constexpr unsigned RESIDENT = RESIDENT_BLOCKS;   // blocks that a device has at work at the same time, at most
constexpr unsigned MOST_NAPS = 4096; // turns in which all resident blocks only sleep, before that is an error
enum State { READY, AT_BARRIER, IN_WARP, ASLEEP, DONE };

struct Fiber {
    ucontext_t start;
    jmp_buf place;
    bool begun;
    State state;
    const char *asked;               // what it asks its warp for
    unsigned argument;
    unsigned long long given, taken; // its number, and what the warp makes of all
    char *stack;
};

// A block that is at work, or the place for one.
struct Block {
    Fiber fibers[MOST];
    unsigned n_threads, number;
    bool works;
    unsigned waits, waits_of_warp[MOST / 32];   // how often __syncthreads and __syncwarp have let threads go on
};

static Block residents[RESIDENT];
static unsigned resident;            // the number of the block whose turn it is among these
static Fiber *fibers = residents[0].fibers;   // its threads
static void (*work)();

// In what order to take turns: rising, falling, or, from the third on, by numbers drawn from it.
enum Order { RISING, FALLING, DRAWN };
static unsigned order;
static unsigned long long state_of_numbers;

static unsigned draw() {
    state_of_numbers = state_of_numbers * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)(state_of_numbers >> 33);
}

// The turns of n threads, n being a power of two: turn k is that of number (k * step + first) % n.
struct Turns {
    unsigned first, step, n;

    explicit Turns(unsigned n) : first(order == FALLING ? n - 1 : 0), step(order == FALLING ? n - 1 : 1), n(n) {
        if (order >= DRAWN) first = draw(), step = draw() | 1;
    }
    unsigned operator[](unsigned k) const { return (k * step + first) & (n - 1); }
};

// What is done about a failure instead of ending the process, if anything; it does not return.
static void (*instead_of_abort)(const char *what);

[[noreturn]] static void fail(const char *what, int line) {
    if (instead_of_abort) instead_of_abort(what);
    fprintf(stderr, "block %u, thread %u: %s (line %d)\n", blockIdx.x, threadIdx.x, what, line);
    abort();
}

#ifdef __SANITIZE_ADDRESS__   // which follows one way to change stacks only, a slow one
static ucontext_t scheduler_start;
static __noinline__ void leave() { swapcontext(&fibers[threadIdx.x].start, &scheduler_start); }
static __noinline__ void enter(unsigned t) { swapcontext(&scheduler_start, &fibers[t].start); }
#else
static jmp_buf scheduler;
static __noinline__ void leave() {
    if (!_setjmp(fibers[threadIdx.x].place)) _longjmp(scheduler, 1);
}
static __noinline__ void enter(unsigned t) {
    if (_setjmp(scheduler)) return;
    if (fibers[t].begun) _longjmp(fibers[t].place, 1);
    fibers[t].begun = true;
    setcontext(&fibers[t].start);
}
#endif

static void run_fiber() {
    for (;;) {
        work();
        fibers[threadIdx.x].state = DONE;
        leave();
    }
}

static void wait(State state) {
    fibers[threadIdx.x].state = state;
    leave();
}

// Give a resident block its turn.
static void turn_to(unsigned k) {
    resident = k;
    fibers = residents[k].fibers;
    blockIdx.x = residents[k].number;
}

static void make_fibers(unsigned n) {
    for (unsigned &n_threads = residents[resident].n_threads; n_threads < n; n_threads++) {
        Fiber &fiber = fibers[n_threads];
        fiber.begun = false;
        if (!fiber.stack) fiber.stack = (char *)malloc(STACK);
        getcontext(&fiber.start);
        fiber.start.uc_stack.ss_sp = fiber.stack;
        fiber.start.uc_stack.ss_size = STACK;
        fiber.start.uc_link = nullptr;
        makecontext(&fiber.start, run_fiber, 0);
    }
}

// Let a warp whose lanes all ask for the same have it.
static void serve(unsigned first) {
    for (unsigned lane = 0; lane < 32; lane++) {
        Fiber &fiber = fibers[first + lane];
        threadIdx.x = first + lane;
        if (fiber.state != IN_WARP) fail("a lane does not take part in what its warp does", 0);
        if (strcmp(fiber.asked, fibers[first].asked)) fail("lanes ask for different things", 0);
        if (fiber.argument != fibers[first].argument) fail("lanes ask for different shuffles", 0);
        unsigned k = fiber.argument, from = lane;
        if (*fiber.asked == 'u') from = lane >= k ? lane - k : lane;
        if (*fiber.asked == 'x') from = lane ^ k;
        if (*fiber.asked == 'i') from = k;
        if (*fiber.asked == 'a') {
            fiber.taken = 0;
            for (unsigned other = 0; other < 32; other++) fiber.taken += fibers[first + other].given;
        } else if (*fiber.asked == 'b') {
            fiber.taken = 0;
            for (unsigned other = 0; other < 32; other++) 
                fiber.taken |= (unsigned long long)!!fibers[first + other].given << other;
        } else {
            fiber.taken = fibers[(first + from) % MOST].given;
        }
    }
    if (*fibers[first].asked == 'w') residents[resident].waits_of_warp[first / 32]++;
    for (unsigned lane = 0; lane < 32; lane++) fibers[first + lane].state = READY;
}

// What a warp, or a block, has come to in its turn.
enum Progress { STANDS, SLEEPS, GOES_ON };

// Let the lanes of a warp run until each waits or has returned. If they wait for each other, they have what they ask for,
// and the warp goes on; it sleeps if one of its lanes does.
static Progress run_warp(unsigned first) {
    unsigned in_warp = 0, asleep = 0;
    Turns lanes(32);
    for (unsigned k = 0; k < 32; k++) {
        threadIdx.x = first + lanes[k];
        State state = fibers[threadIdx.x].state;
        if (state == READY || state == ASLEEP) enter(threadIdx.x);
    }
    for (unsigned k = 0; k < 32; k++) {
        in_warp += fibers[first + k].state == IN_WARP;
        asleep += fibers[first + k].state == ASLEEP;
    }
    if (asleep) return SLEEPS;
    if (in_warp) serve(first);
    return in_warp ? GOES_ON : STANDS;
}

// Give each warp of the resident block whose turn it is one, or more. Where all their threads wait for the block, these go
// on; where all have returned, it is no longer at work.
static Progress run_block(unsigned threads) {
    unsigned at_barrier = 0, n_done = 0;
    Progress all = STANDS;
    Turns warps(threads / 32);
    for (unsigned k = 0; k < threads / 32; k++) {
        Progress own = run_warp(32 * warps[k]);
        while (own == GOES_ON && (order < DRAWN || draw() % 2)) own = run_warp(32 * warps[k]);
        if (own > all) all = own;
    }
    if (all != STANDS) return all;
    for (unsigned t = 0; t < threads; t++) {
        at_barrier += fibers[t].state == AT_BARRIER;
        n_done += fibers[t].state == DONE;
    }
    if (at_barrier && n_done) fail("some threads have returned, others wait for them", 0);
    if (at_barrier) residents[resident].waits++;
    for (unsigned t = 0; t < threads && at_barrier; t++) fibers[t].state = READY;
    residents[resident].works = at_barrier;
    return GOES_ON;
}

// Run a kernel with n blocks of the grid, each after `prepare`; blocks and threads take turns in this order. The number of
// threads is a power of two.
static void run(void (*body)(), void (*prepare)(), unsigned blocks, unsigned threads, unsigned in_order) {
    work = body;
    order = in_order;
    state_of_numbers = in_order;
    unsigned n_turns = 1, turn = 0, naps = 0;
    while (n_turns < blocks) n_turns *= 2;
    Turns turns(n_turns);
    for (Block &block : residents) block.works = false;
    for (;;) {
        unsigned at_work = 0, most = order < DRAWN ? 1 : RESIDENT, k = 0;
        for (unsigned own = 0; own < most; own++) {
            while (!residents[own].works && turn < n_turns) {
                unsigned number = turns[turn++];
                if (number >= blocks) continue;
                residents[own].works = true;
                residents[own].number = number;
                turn_to(own);
                make_fibers(threads);
                prepare();
                for (unsigned t = 0; t < threads; t++) fibers[t].state = READY;
                naps = 0;
            }
            at_work += residents[own].works;
        }
        if (!at_work) return;
        for (unsigned left = at_work > 1 ? draw() % at_work : 0;; k++)
            if (residents[k].works && !left--) break;
        turn_to(k);
        naps = run_block(threads) == SLEEPS ? naps + 1 : 0;
        if (naps == MOST_NAPS) fail("blocks wait for each other, or for one that has not begun", 0);
    }
}

static unsigned long long ask(const char *what, unsigned argument, unsigned long long number) {
    Fiber &fiber = fibers[threadIdx.x];
    fiber.asked = what;
    fiber.argument = argument;
    fiber.given = number;
    wait(IN_WARP);
    return fiber.taken;
}

}  // namespace host_threads

// Kernels let all lanes of a warp take part in what it does, so that a lane that does not come is found out.
static inline void check_mask(unsigned mask) {
    if (mask != 0xFFFFFFFFu) host_threads::fail("a mask is not that of all lanes", 0);
}

static inline void __syncthreads() { host_threads::wait(host_threads::AT_BARRIER); }
static inline void __syncwarp() { host_threads::ask("w", 0, 0); }
static inline void __nanosleep(unsigned) { host_threads::wait(host_threads::ASLEEP); }
template <typename T> T __shfl_up_sync(unsigned mask, T x, unsigned k) {
    check_mask(mask);
    return (T)host_threads::ask("up", k, x);
}
template <typename T> T __shfl_xor_sync(unsigned mask, T x, unsigned k) {
    check_mask(mask);
    return (T)host_threads::ask("xor", k, x);
}
template <typename T> T __shfl_sync(unsigned mask, T x, unsigned k) {
    check_mask(mask);
    return (T)host_threads::ask("index", k, x);
}
static inline unsigned __reduce_add_sync(unsigned mask, unsigned x) {
    check_mask(mask);
    return (unsigned)host_threads::ask("add", 0, x);
}
static inline unsigned __ballot_sync(unsigned mask, bool x) {
    check_mask(mask);
    return (unsigned)host_threads::ask("ballot", 0, x);
}
static inline unsigned __popc(unsigned x) { return (unsigned)__builtin_popcount(x); }
static inline unsigned __clz(unsigned x) { return x ? (unsigned)__builtin_clz(x) : 32u; }
static inline unsigned __brev(unsigned x) {
    unsigned result = 0;
    for (int k = 0; k < 32; k++) result |= (x >> k & 1) << (31 - k);
    return result;
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((low | (unsigned long long)high << 32) >> (shift & 31));
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)((low | (unsigned long long)high << 32) << (shift & 31) >> 32);
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    unsigned long long eight = a | (unsigned long long)b << 32;
    unsigned result = 0;
    for (unsigned k = 0; k < 4; k++) result |= (unsigned)(eight >> 8 * (selector >> 4 * k & 7) & 255) << 8 * k;
    return result;
}
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
template <typename T> T atomicOr(T *place, T bits) {
    T before = *place;
    *place |= bits;
    return before;
}
template <typename T> T atomicAdd(T *place, T number) {
    T before = *place;
    *place += number;
    return before;
}
