// Kernels with faults that a device would show, and one without: a program that runs one of them, by its number, in an order
// of turns, and returns 1 where its result is wrong. See host_threads.h.
#include "host_threads.h"

constexpr unsigned THREADS = 256, BLOCKS = 5, ALL = 0xFFFFFFFFu;
static unsigned shared[host_threads::RESIDENT][THREADS], sums[BLOCKS], blocks[BLOCKS], number, begun;
static volatile unsigned long long status[BLOCKS];
static unsigned char room[64] __attribute__((aligned(16)));

// Return what the thread after this one of the same warp, or of the next warp, has written.
static unsigned of_next(unsigned distance) {
    return shared[host_threads::resident][(threadIdx.x + distance) % THREADS];
}

static void kernel() {
    unsigned t = threadIdx.x, lane = t & 31, wrong = 0, *cells = shared[host_threads::resident];
    cells[t] = t + 1;
    if (number == 0) {                     // no fault
        __syncthreads();
        wrong = of_next(1) != (t + 1) % THREADS + 1 || __shfl_xor_sync(ALL, t, 1) != (t ^ 1);
        __syncthreads();
    }
    if (number == 1 && lane < 31) wrong = of_next(1) != t + 2;                     // lanes do not wait for each other
    if (number == 2) {                                                             // warps do not
        __syncwarp();
        wrong = of_next(32) != (t + 32) % THREADS + 1;
    }
    if (number == 3) wrong = __shfl_xor_sync(0xFFFFu, t, 1) != (t ^ 1);            // a mask of some lanes
    if (number == 4 && lane) __syncwarp();                                         // a lane does not come
    if (number == 5 && t) __syncthreads();                                         // a thread does not
    if (number == 6) wrong = ((const uint4 *)(room + 4))->x != 0;                  // no vector begins there
    if (number == 7) wrong = (t >> (lane + 32 * (lane > 30))) != t >> lane;        // a shift by more than there is
    if (number == 8) {                                                             // blocks do not wait for each other
        blocks[blockIdx.x] = 1;
        wrong = blockIdx.x && !blocks[blockIdx.x - 1];
    }
    if (number == 9 && t == 0) {           // no fault: blocks wait for those that have begun before them
        unsigned own = atomicAdd(&begun, 1u);
        while (own && !status[own - 1]) __nanosleep(20);
        status[own] = 1;
    }
    if (number == 10 && t == 0) {                                                  // nothing says that those before have begun
        while (blockIdx.x && !status[blockIdx.x - 1]) __nanosleep(20);
        status[blockIdx.x] = 1;
    }
    cells[t] = 0;
    atomicAdd(sums + blockIdx.x, wrong);
}

static void prepare() { memset(shared[host_threads::resident], 0, sizeof(*shared)); }

int main(int, char **arguments) {
    number = (unsigned)atoi(arguments[1]);
    host_threads::run(kernel, prepare, BLOCKS, THREADS, (unsigned)atoi(arguments[2]));
    for (unsigned sum : sums)
        if (sum) return 1;
    return 0;
}
