// A sketch, of which bench.experiments.fixed_codes counts the instructions: blocks whose heads have codes of four bits.
//
// A block has 16,384 values, or fewer at the end; what is behind the last one is any value. Its words, of which the
// first eight are its header, and 2,3 of these the checksum of all others:
//
//   codes    one for eight values: value k has the low half of byte k, value k + 4 the high half
//   tails    two for eight values: sign and seven bits, a byte each; then of float32 four more, the low 16 bits of each
//   escapes  one each: place, and the head from bit 14 on; in the order of threads
//
//   code     0        1 ... 14                        15
//   head     0        base + code, from the header    an escape's
#include "device.cuh"

constexpr u32 PER_STEP = THREADS * 8, STEPS = MAX_VALUES / PER_STEP, HEADER_WORDS = 8;
constexpr u32 BASE = 4, N_ESCAPES = 5;               // words of the header
constexpr u32 CODES = HEADER_WORDS, TAILS = CODES + MAX_VALUES / 8, LOWS = TAILS + MAX_VALUES / 4;

// Where escapes begin: behind what values of V take.
template <typename V>
constexpr u32 ESCAPES = sizeof(V) == 2 ? LOWS : LOWS + MAX_VALUES / 2;

struct FixedShared {
    u64 cells[WARPS];
    u32 counts[WARPS], base;
};

// Return four heads, a byte each, of four codes.
__device__ __forceinline__ u32 heads_of(u32 codes, u32 base) {
    u32 owners = (codes + 0x7F7F7F7Fu) >> 7 & 0x01010101u;
    return codes + owners * base;
}

// Return two values of 16 bits, or the upper halves of two of float32, of two bytes of heads and of tails from k on.
__device__ __forceinline__ u32 two_values(u32 heads, u32 tails, u32 k) {
    u32 head = __byte_perm(heads, 0, k ? 0x4342 : 0x4140), tail = __byte_perm(tails, 0, k ? 0x3322 : 0x1100);
    return head << 7 | (tail & 0x807F807Fu);
}

__device__ __forceinline__ void write_eight(u16 *to, const u32 *uppers, const u32 *) {
    *(uint4 *)to = {uppers[0], uppers[1], uppers[2], uppers[3]};
}

__device__ __forceinline__ void write_eight(u32 *to, const u32 *uppers, const u32 *lows) {
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
        const u32 *up = uppers + 2 * k, *low = lows + 2 * k;
        ((uint4 *)to)[k] = {__byte_perm(low[0], up[0], 0x5410), __byte_perm(low[0], up[0], 0x7632),
                            __byte_perm(low[1], up[1], 0x5410), __byte_perm(low[1], up[1], 0x7632)};
    }
}

template <typename V>
__device__ __forceinline__ void decode_fixed(const u32 *words, u32 n_words, V *out, u32 n, i32 *status, FixedShared &shared) {
    constexpr bool WIDE = sizeof(V) == 4;
    u32 t = threadIdx.x, codes[STEPS];
    uint2 tails[STEPS];
    uint4 lows[WIDE ? STEPS : 1];
    u64 sum = 0;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        u32 i = step * THREADS + t;
        codes[step] = words[CODES + i];
        tails[step] = ((const uint2 *)(words + TAILS))[i];
        sum += weighed(codes[step], CODES + i) + weighed(tails[step].x, TAILS + 2 * i) + weighed(tails[step].y, TAILS + 2 * i + 1);
        if (WIDE) {
            lows[step] = ((const uint4 *)(words + LOWS))[i];
            sum += weighed(lows[step].x, LOWS + 4 * i) + weighed(lows[step].y, LOWS + 4 * i + 1) +
                   weighed(lows[step].z, LOWS + 4 * i + 2) + weighed(lows[step].w, LOWS + 4 * i + 3);
        }
    }
    for (u32 i = ESCAPES<V> + t; i < n_words; i += THREADS) sum += weighed(words[i], i);
    if (t < HEADER_WORDS && t != 2 && t != 3) sum += weighed(words[t], t);
    u64 total = sum_of_block<true>(sum, shared.cells) + SEED;
    u32 base = words[BASE], n_escapes = words[N_ESCAPES];
    bool good = total == (words[2] | (u64)words[3] << 32) && n_escapes == n_words - ESCAPES<V> && base < 256;
    if (t == 0) *status = good ? OK : BAD_CHECKSUM;
    if (!good) return;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        u32 at = step * PER_STEP + 8 * t;
        if (at >= n) continue;
        u32 first = heads_of(codes[step] & 0x0F0F0F0Fu, base), second = heads_of(codes[step] >> 4 & 0x0F0F0F0Fu, base);
        u32 uppers[4] = {two_values(first, tails[step].x, 0), two_values(first, tails[step].x, 2),
                         two_values(second, tails[step].y, 0), two_values(second, tails[step].y, 2)};
        write_eight(out + at, uppers, (const u32 *)&lows[WIDE ? step : 0]);
    }
    if (n_escapes == 0) return;
    __syncthreads();   // what they are written over is there
    for (u32 i = ESCAPES<V> + t; i < n_words; i += THREADS) {
        u32 place = words[i] & (MAX_VALUES - 1), head = words[i] >> 14 & 255;
        constexpr u32 SHIFT = 8 * sizeof(V) - 9;
        if (place < n) out[place] = (V)((out[place] & ~((V)255 << SHIFT)) | (V)head << SHIFT);
    }
}

// Load eight values: their upper halves, and of float32 their lower ones, two in a word.
__device__ __forceinline__ void load_eight(const u16 *from, u32 *uppers, u32 *) {
    uint4 x = *(const uint4 *)from;
    uppers[0] = x.x, uppers[1] = x.y, uppers[2] = x.z, uppers[3] = x.w;
}

__device__ __forceinline__ void load_eight(const u32 *from, u32 *uppers, u32 *lows) {
#pragma unroll
    for (u32 k = 0; k < 2; k++) {
        uint4 x = ((const uint4 *)from)[k];
        uppers[2 * k] = __byte_perm(x.x, x.y, 0x7632), uppers[2 * k + 1] = __byte_perm(x.z, x.w, 0x7632);
        lows[2 * k] = __byte_perm(x.x, x.y, 0x5410), lows[2 * k + 1] = __byte_perm(x.z, x.w, 0x5410);
    }
}

// Return the codes of two heads, each in the half of a word that its head is in.
__device__ __forceinline__ u32 two_codes(u32 heads, u32 base) {
    u32 above = heads + (0x7FFFu - base) * 0x00010001u ^ 0x80008000u;   // head - base - 1, negative with bit 15
    u32 bad = (((above & 0x7FFF7FFFu) + 0x7FF27FF2u) | above) >> 15 & 0x00010001u;
    u32 owners = (heads + 0x7FFF7FFFu) >> 15 & 0x00010001u;
    return (((above & 0x000F000Fu) + 0x00010001u) | bad * 15) & owners * 15;
}

template <typename V>
__device__ __forceinline__ void encode_fixed(const V *values, u32 n, u32 offset, u32 *words, u32 *n_words, FixedShared &shared) {
    constexpr bool WIDE = sizeof(V) == 4;
    u32 t = threadIdx.x, uppers[STEPS][4], lows[WIDE ? STEPS : 1][4], sum = 0, n_own = 0;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        u32 at = step * PER_STEP + 8 * t;
#pragma unroll
        for (u32 k = 0; k < 4; k++) uppers[step][k] = lows[WIDE ? step : 0][k] = 0;
        if (at < n) load_eight(values + at, uppers[step], lows[WIDE ? step : 0]);
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 heads = uppers[step][k] >> 7 & 0x00FF00FFu;
            sum += heads, n_own += (heads + 0x7FFF7FFFu) >> 15 & 0x00010001u;
        }
    }
    // Sums of two halves: of a thread's 32 pairs at most 2^13 and 2^6, and of all at most 2^22.
    u64 both = (u64)((sum & 0xFFFF) + (sum >> 16)) << 32 | ((n_own & 0xFFFF) + (n_own >> 16));
    both = sum_of_block<true>(both, shared.cells);
    u32 n_nonzero = (u32)both, mean = n_nonzero ? (u32)(both >> 32) / n_nonzero : 0;
    u32 base = mean > offset ? least(mean - offset, 255 - 14) : 0, n_escapes = 0;
    u64 weight = 0, escaped = 0;
#pragma unroll
    for (u32 step = 0; step < STEPS; step++) {
        u32 i = step * THREADS + t, c[4], x[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 pair = uppers[step][k];
            c[k] = two_codes(pair >> 7 & 0x00FF00FFu, base);
            x[k] = (pair & 0x007F007Fu) | (pair >> 8 & 0x00800080u);
        }
        u32 codes = __byte_perm(c[0], c[1], 0x6420) | __byte_perm(c[2], c[3], 0x6420) << 4;
        uint2 tails = {__byte_perm(x[0], x[1], 0x6420), __byte_perm(x[2], x[3], 0x6420)};
        words[CODES + i] = codes;
        ((uint2 *)(words + TAILS))[i] = tails;
        weight += weighed(codes, CODES + i) + weighed(tails.x, TAILS + 2 * i) + weighed(tails.y, TAILS + 2 * i + 1);
        if (WIDE) {
            const u32 *low = lows[step];
            ((uint4 *)(words + LOWS))[i] = {low[0], low[1], low[2], low[3]};
#pragma unroll
            for (u32 k = 0; k < 4; k++) weight += weighed(low[k], LOWS + 4 * i + k);
        }
        u32 all_set = codes & codes >> 1;
        all_set &= all_set >> 2;
        escaped |= (u64)(all_set & 0x11111111u) << (step & 3) << (step & 4 ? 32 : 0);
        if ((step & 3) == 3) n_escapes += __popc(step & 4 ? (u32)(escaped >> 32) : (u32)escaped);
    }
    u32 total = 0, at = ESCAPES<V> + sum_before_thread<true>(n_escapes, shared.counts, total);
    // A bit for each value: of each four steps a nibble for each nibble of the codes.
    while (escaped) {
        u32 low = (u32)escaped, half = low ? 0 : 4, bits = low ? low : (u32)(escaped >> 32);
        u32 bit = __popc((bits & (0u - bits)) - 1), nibble = bit >> 2, step = (bit & 3) + half;
        u32 place = step * PER_STEP + 8 * t + (nibble >> 1) + 4 * (nibble & 1);
        u32 head = (u32)(values[place] >> (8 * sizeof(V) - 9)) & 255, word = place | head << 14;
        words[at] = word;
        weight += weighed(word, at++);
        escaped &= escaped - 1;
    }
    if (t == 0) {
        u32 header[HEADER_WORDS] = {0, n, 0, 0, base, total, 0, 0};
#pragma unroll
        for (u32 k = 0; k < HEADER_WORDS; k++)
            if (k != 2 && k != 3) words[k] = header[k], weight += weighed(header[k], k);
        *n_words = ESCAPES<V> + total;
    }
    u64 checksum = sum_of_block(weight, shared.cells) + SEED;
    if (t == 0) words[2] = (u32)checksum, words[3] = (u32)(checksum >> 32);
}

#define FIXED_KERNELS(name, V)                                                                                         \
    extern "C" __global__ void __launch_bounds__(THREADS) decode_fixed_##name(                                          \
        const u32 *words, const u32 *n_words, V *out, u64 n, u32 room, i32 *statuses) {                                \
        __shared__ FixedShared shared;                                                                                  \
        u64 first = (u64)blockIdx.x * MAX_VALUES, left = n - first;                                                     \
        decode_fixed<V>(words + (u64)blockIdx.x * room, n_words[blockIdx.x], out + first,                              \
                        left < MAX_VALUES ? (u32)left : MAX_VALUES, statuses + blockIdx.x, shared);                    \
    }                                                                                                                  \
    extern "C" __global__ void __launch_bounds__(THREADS) encode_fixed_##name(                                          \
        const V *values, u64 n, u32 offset, u32 *words, u32 room, u32 *n_words) {                                      \
        __shared__ FixedShared shared;                                                                                  \
        u64 first = (u64)blockIdx.x * MAX_VALUES, left = n - first;                                                     \
        encode_fixed<V>(values + first, left < MAX_VALUES ? (u32)left : MAX_VALUES, offset,                            \
                        words + (u64)blockIdx.x * room, n_words + blockIdx.x, shared);                                 \
    }

FIXED_KERNELS(bfloat16, u16)
FIXED_KERNELS(float32, u32)
