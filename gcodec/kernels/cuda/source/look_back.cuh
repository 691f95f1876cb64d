// Where a block goes in its frame, which the sizes of the blocks before it say. Blocks of the grid do the blocks of a frame at
// the same time, and each tells the others what it knows, so that no block is written twice (decoupled look-back: Merrill and
// Garland, Single-pass Parallel Prefix Scan with Decoupled Look-back, 2016).
//
// What a block has told is one number of 64 bits, which is written and read at once. So nothing else has to be ordered:
//
//     bits     63 ... 2     1 ... 0
//              bytes        NOTHING yet; OWN: of the block; ALL_SO_FAR: of the block and of those before it
//
//     block    0            1     2     3            4         each looks back until one says ALL_SO_FAR
//              ALL_SO_FAR   OWN   OWN   ALL_SO_FAR   ...       4 adds nothing to what 3 says, and 2 adds 1 and 0
//
// Blocks of the grid are numbered as they begin (`take_number`), not by blockIdx. So those that a block waits for have begun
// before it, whatever the order in which a device begins them, and wait for none that begins later.
#pragma once

#include "device.cuh"

enum Told : u32 { NOTHING, OWN, ALL_SO_FAR };

// Return this block's number among those of the grid, in each thread. `numbers` is 0 before the launch; `cell` is shared. Has a
// barrier.
__device__ __forceinline__ u32 take_number(u32 *numbers, u32 &cell) {
    if (threadIdx.x == 0) cell = atomicAdd(numbers, 1u);
    __syncthreads();
    return cell;
}

// Return the bytes of the blocks before number `b` of a frame, in each lane of the one warp that asks, and tell the others the
// size of this one. `told`: what the frame's blocks have told, zeros before the launch.
__device__ __forceinline__ u64 bytes_before(volatile u64 *told, u32 b, u32 size) {
    u32 lane = threadIdx.x & 31;
    u64 before = 0;
    if (b && lane == 0) told[b] = (u64)size << 2 | OWN;
#pragma unroll 1
    for (u32 end = b; end;) {       // lane 0 has block end - 1, lane 1 the one before it ...
        u64 found = ALL_SO_FAR;
        if (lane < end)
            while (((found = told[end - 1 - lane]) & 3) == NOTHING) __nanosleep(20);
        u32 whole = __ballot_sync(ALL, (found & 3) == ALL_SO_FAR);
        u32 last = whole ? 31 - __clz(whole & (0 - whole)) : 32;    // the nearest block that tells of those before it
        before += sum_of_warp(lane < last ? (u32)(found >> 2) : 0u);
        if (whole) {
            before += __shfl_sync(ALL, found, last) >> 2;
            break;
        }
        end -= 32;      // block 0 never tells OWN, so there are as many
    }
    if (lane == 0) told[b] = (before + size) << 2 | ALL_SO_FAR;
    return before;
}
