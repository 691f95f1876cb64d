// Kernels with a fault each that the device of runtime.cpp finds, and some without: controls, compiled as the others are.
typedef unsigned u32;

struct Arguments {
    u32 *values;        // 256 for each of two blocks, some of which nothing has been put into
    u32 zero;           // which the compiler does not know
};

constexpr u32 ALL = 0xFFFFFFFFu;

#define KERNEL(name, ...)                                                                     \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ Arguments a) { \
        __shared__ u32 cells[256];                                                            \
        u32 t = threadIdx.x, lane = t & 31, *own = a.values + 256 * blockIdx.x;               \
        __VA_ARGS__                                                                           \
    }

KERNEL(threads_wait, cells[t] = t; __syncthreads(); own[t] = cells[255 - t];)
KERNEL(lanes_wait, cells[t] = t; __syncwarp(); own[t] = cells[t ^ 1];)
KERNEL(all_clear_the_same, cells[a.zero] = 0; __syncthreads(); own[t] = cells[0];)
KERNEL(all_add_and_wait, if (t == 0) cells[0] = 0; __syncthreads(); atomicAdd(cells, t); __syncthreads(); own[t] = cells[0];)
KERNEL(blocks_add, atomicAdd(a.values, t);)
KERNEL(blocks_tell_each_other, volatile u32 *all = a.values; if (t == 0) all[0] = blockIdx.x + 1; if (t == 32) own[1] = all[0];)

KERNEL(warps_do_not_wait, cells[t] = t; __syncwarp(); own[t] = cells[255 - t];)
KERNEL(lanes_do_not_wait, cells[t] = t; own[t] = cells[t ^ 1];)
KERNEL(a_shuffle_orders_no_memory, cells[t] = t; u32 next = __shfl_xor_sync(ALL, lane, 1); own[t] = cells[t - lane + next];)
KERNEL(reads_are_not_waited_for, cells[t] = t; __syncthreads(); u32 x = cells[255 - t]; cells[t] = x + 1; own[t] = x;)
KERNEL(blocks_write_the_same_place, a.values[t] = blockIdx.x + 1;)
KERNEL(blocks_read_what_others_write, own[t] = a.values[t] + 1;)
KERNEL(some_write_what_others_are_told, volatile u32 *all = a.values; if (t == 0 && blockIdx.x) a.values[0] = 7; if (t == 0 && !blockIdx.x) own[1] = all[0];)
KERNEL(some_add_and_some_read, if (t == 0) cells[0] = 0; __syncthreads(); if (t & 1) atomicAdd(cells, t); else own[t] = cells[0];)
KERNEL(an_index_of_shared_memory_is_one_too_high, cells[t] = t; __syncthreads(); own[t] = cells[t + 1 + a.zero];)
KERNEL(an_index_of_an_array_is_one_too_high, a.values[256 + 1 + t + a.zero] = t;)
KERNEL(an_index_of_an_array_is_one_too_low, a.values[t - 1 + a.zero] = t;)
KERNEL(a_vector_is_not_aligned, cells[t] = t; __syncthreads(); if (t == 0) *(uint4 *)(own + 4) = ((const uint4 *)(cells + 1 + a.zero))[a.zero];)
KERNEL(shared_memory_is_not_written, if (t) cells[t] = t; __syncthreads(); own[t] = cells[t];)
KERNEL(an_array_is_not_written, own[t] += 1;)
KERNEL(a_lane_does_not_come, if (lane) __syncwarp(); own[t] = t;)
KERNEL(a_thread_does_not_come, if (t) __syncthreads(); own[t] = t;)
KERNEL(a_division_by_zero, own[t] = t / a.zero;)
