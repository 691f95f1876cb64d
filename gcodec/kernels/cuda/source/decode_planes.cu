// Decoding of float32, bfloat16 and float16 whose bits are in planes of at most 8 bits: of several levels, or of fewer
// bits than the type has. Heads have 8 bits, and there are no column references.
#include "decode_planes.cuh"

struct PlanesDecoder : PlanesShared {
    template <typename V>
    __device__ __forceinline__ Status decode(const Block<V> &block, const Fields &f, const DecodeTables &tables, u32 book,
                                             const i64 *) {
        Status status = find_items(block, f, tables, book, head_bits(), true);
        if (status != OK) return status;
        if ((f.streams_at >> 2) < block.last) {
            write_values<false>(block);
        } else {
            write_at_end(block);
        }
        return OK;
    }

    // Write the values of a block that ends with its planes, or with seven bytes more.
    template <typename V>
    __device__ __noinline__ void write_at_end(Block<V> block) const {
        write_values<true>(block);
    }

    // The parts of four symbols: relative heads, a byte for each, and what planes they own items of.
    __device__ __forceinline__ Four parts_of(u32 four) const {
        SymbolParts a = parts[four & 255], b = parts[four >> 8 & 255], c = parts[four >> 16 & 255], d = parts[four >> 24];
        u32 heads = __byte_perm(__byte_perm(a.entry, b.entry, 0x40), __byte_perm(c.entry, d.entry, 0x40), 0x5410);
        u32 marks = __byte_perm(__byte_perm(a.entry, b.entry, 0x62), __byte_perm(c.entry, d.entry, 0x62), 0x5410);
        return {heads, marks, a.owned | b.owned << 1 | c.owned << 2 | d.owned << 3};
    }

    // Put heads and tails together, a warp for each sub-stream; a lane does four values at a time.
    //
    //     symbols    s3 s2 s1 s0                  a word of shared memory
    //     items      those of the four in a plane lie side by side; how many come before a lane is a sum over the warp
    //     tail       the items of the last plane at its low end ... of plane 0 at its high end: each one pushes
    //                what is there down by as many bits as it has
    template <bool AT_END, typename V>
    __device__ __forceinline__ void write_values(const Block<V> &block) const {
        u32 lane = threadIdx.x & 31, n_streams = block.n_streams(), own_plane = plane_of(lane, n_planes);
        bool aligned = takes_four(block);
        for (u32 s = threadIdx.x >> 5; s < n_streams; s += WARPS) {
            u32 count = block.length(s), references = reference[s] * 0x01010101u;
            const u32 *row = symbols + block.row(s);
            // The bit at which the next items of a plane begin, in the lane of its number.
            u32 width_here = widths[own_plane], items_here = before[pair_of(own_plane)][s] >> shift_of(own_plane) & 0xFFFF;
            u32 next = places[own_plane] + items_here * width_here;
#pragma unroll 1
            for (u32 begin = 0; begin < count; begin += 128) {
                u32 k = begin + 4 * lane, i = (s << block.log2) + k, four = k < count ? row[k >> 2] : 0, values[4];
                Four found = parts_of(four);
                u32 heads = add_bytes(found.heads, references), low, high = 0, low_up_to, high_up_to = 0;
                if (has_escape(four)) heads = with_escapes(block.out + i, four, heads);
                count_owned(found.owned, low, high);
                low_up_to = sum_up_to_lane(low, lane);
                if (n_planes > 4) high_up_to = sum_up_to_lane(high, lane);
                // Of the plane whose turn it is, what comes before has the highest byte, and who owns an item the lowest bits.
                u64 before_lane = ((low_up_to - low) | (u64)(high_up_to - high) << 32) << 8 * (MAX_PLANES - n_planes);
                u32 tails[4] = {0, 0, 0, 0};
#pragma unroll 1
                for (i32 p = n_planes - 1; p >= 0; p--) {
                    u32 width = __shfl_sync(ALL, width_here, p), items_before = (u32)(before_lane >> 56);
                    u32 items = block.template bits<AT_END>(__shfl_sync(ALL, next, p) + items_before * width);
                    u32 bits = (found.marks & 0x01010101u) * width;
                    before_lane <<= 8;
                    found.marks >>= 1;
#pragma unroll
                    for (u32 j = 0; j < 4; j++) {
                        tails[j] = __funnelshift_r(tails[j], items, bits >> 8 * j);
                        items = __funnelshift_r(items, 0, bits >> 8 * j);
                    }
                }
                u32 low_all = __shfl_sync(ALL, low_up_to, 31), high_all = __shfl_sync(ALL, high_up_to, 31);
                next += ((own_plane < 4 ? low_all : high_all) >> 8 * (own_plane & 3) & 255) * width_here;
#pragma unroll
                for (u32 j = 0; j < 4; j++) {
                    u32 head = heads >> 8 * j & 255, value = value_of(head, tails[j], (const V *)0);
                    values[j] = four >> 8 * j & 255 ? value : 0;
                }
                put_values(block, aligned, i, k < count ? count - k : 0, values);
            }
        }
    }
};

template <typename V>
__device__ __forceinline__ void decode_planes(const DecodeArguments<V> &a, PlanesDecoder &shared) {
    if (threadIdx.x == 0) shared.n_planes = a.coding.n_planes;
    decode_blocks(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
decode_planes_float32(const __grid_constant__ DecodeArguments<u32> a) {
    __shared__ PlanesDecoder shared;
    decode_planes(a, shared);
}

// bfloat16 and float16, which are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
decode_planes_float16(const __grid_constant__ DecodeArguments<u16> a) {
    __shared__ PlanesDecoder shared;
    decode_planes(a, shared);
}
