// What the kernels share whose values have their bits in several planes of at most 8 bits: counting and cutting items.
//
//     digits     of 4 bits, one for each plane: of a symbol 1 if its values own an item of the plane, of four values a
//                bit for each
#pragma once

#include "device.cuh"

constexpr u32 MAX_PLANES = 8;

// What a symbol's values consist of.
struct alignas(8) SymbolParts {
    u32 entry;      // decoders: the relative head and, 16 bits up, perhaps a bit for each plane, the last one's lowest, 1
                    // where they own an item of it; encoders: as in encode.cuh
    u32 owned;      // a digit for each plane: 1 where they own an item of it
};

// Four values of decoders: a byte of `heads` for each, and one of `marks`, with its bits for planes; and in each digit of
// `owned` a bit for each.
struct Four {
    u32 heads, marks, owned;
};

// Return the digits of a mark, which has a bit for each plane.
//
//     digit      7  6  5  4  3  2  1  0
//     plane      7  3  6  2  5  1  4  0
__device__ __forceinline__ u32 spread(u32 mark) {
    // The factor is 1 + 2^7 + 2^14 + 2^21: bit k of four goes to k, k + 7, k + 14 and k + 21, no two of which are the
    // same place, so nothing carries. Of these, 8 k is one, and the mask keeps it: bit 0, 1, 2, 3 to 0, 8, 16, 24.
    u32 low = (mark & 15) * 0x00204081u & 0x01010101u, high = (mark >> 4) * 0x00204081u & 0x01010101u;
    return low | high << 4;
}

// Return the digit of a plane.
__device__ __forceinline__ u32 digit_of(u32 digits, u32 plane) { return digits >> (8 * (plane & 3) + (plane & 4)) & 15; }

// Count the bits of each digit: those of planes 0 to 3 a byte each in `low`, of planes 4 to 7 in `high`.
__device__ __forceinline__ void count_owned(u32 owned, u32 &low, u32 &high) {
    //     digit          d c b a
    //     pairs          d + c | b + a        two bits each: of x bits, x - (x >> 1) is how many are set
    //     numbers        d + c + b + a        0 ... 4, in the digit's place
    u32 pairs = owned - (owned >> 1 & 0x55555555u), numbers = (pairs & 0x33333333u) + (pairs >> 2 & 0x33333333u);
    low = numbers & 0x0F0F0F0Fu;
    high = numbers >> 4 & 0x0F0F0F0Fu;
}

// Add the numbers in digits to those of 16 bits: planes 0 and 2, 1 and 3, 4 and 6, 5 and 7.
__device__ __forceinline__ void add_pairs(u32 *sums, u32 numbers) {
    u32 low = numbers & 0x0F0F0F0Fu, high = numbers >> 4 & 0x0F0F0F0Fu;
    sums[0] += low & 0x00FF00FFu;
    sums[1] += low >> 8 & 0x00FF00FFu;
    sums[2] += high & 0x00FF00FFu;
    sums[3] += high >> 8 & 0x00FF00FFu;
}

// Where among such sums a plane's lies: which of them, and how many bits up.
__device__ __forceinline__ u32 pair_of(u32 plane) { return (plane & 1) + (plane >> 1 & 2); }
__device__ __forceinline__ u32 shift_of(u32 plane) { return (plane & 2) << 3; }
__device__ __forceinline__ u32 number_of(const u32 *sums, u32 plane) {
    return sums[pair_of(plane)] >> shift_of(plane) & 0xFFFF;
}

// The plane whose numbers a lane holds for its warp: its own, or again one of those whose sums are made.
__device__ __forceinline__ u32 plane_of(u32 lane, u32 n_planes) { return lane & (n_planes > 4 ? 7 : 3); }

// Return the bits that each of four values has in a plane of this width, a byte for each.
__device__ __forceinline__ u32 bits_of(u32 owned, u32 plane, u32 width) {
    return (digit_of(owned, plane) * 0x00204081u & 0x01010101u) * width;
}

// Return a value of a head and a tail, whose highest bit is bit 31.
__device__ __forceinline__ u32 value_of(u32 head, u32 tail, const u32 *) {
    return (tail & 0x80000000u) | head << 23 | (tail >> 8 & 0x7FFFFF);
}
__device__ __forceinline__ u32 value_of(u32 head, u32 tail, const u16 *) {
    return tail >> 31 << 15 | head << 7 | (tail >> 24 & 127);
}

// Return the tail of a value, likewise.
__device__ __forceinline__ u32 tail_of(u32 value, const u32 *) { return (value & 0x80000000u) | (value << 8 & 0x7FFFFFFFu); }
__device__ __forceinline__ u32 tail_of(u32 value, const u16 *) { return value >> 15 << 31 | (value & 127) << 24; }
