// Levels by the optimizers' rules, by a block of threads for each 2**14 values of a tensor; gcodec.kernels.cuda.level_tables
// has the arguments.
//
// gcodec/kernels/levels/terms.py has the rules, and says what the constants are and why each operation stands where it
// does. Here they are once more, operation for operation, each rounded on its own, so that levels are the host's bit for
// bit. Of arrays that may be missing the row of the table says -1.
#include "device.cuh"

// Columns of the table of tensors (gcodec.kernels.cuda.level_tables).
struct Column {
    enum { GRAD, PARAM, FIRST, SECOND, THIRD, COUNT, BLOCK_AT, WHICH, OUT, TOP, NUMBER };
};

enum FloatKind : u32 { WIDE, BFLOAT16, HALF };   // float_kind of gcodec.dtypes.DType
constexpr u32 THRESHOLDS = 15, N_ROLES = 5;

// Arrays of gradients, parameters and three of state, each of the kind of floats that `kinds` says.
struct LevelArguments {
    Array<const void, 1> roles[N_ROLES];
    u32 kinds[N_ROLES];
    Array<const i64, 2> rows;
    Array<const i32, 1> owner;
    Array<const float, 2> constants, thresholds;
    Array<u8, 1> out;
};

struct LevelShared {
    float thresholds[THRESHOLDS];
};

// The two sides of a rule: the size of the gradient's term, and what the parameter would be without it.
struct Sides {
    float u, n;
};

// What all rules have (terms.Limits).
struct Limits {
    float floor, min_grad, raised, faint, lost, max_grad, max_past, margin, zero, one;
};

__device__ __forceinline__ float times(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ float plus(float a, float b) { return __fadd_rn(a, b); }
__device__ __forceinline__ float minus(float a, float b) { return __fsub_rn(a, b); }
__device__ __forceinline__ float over(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ float root(float a) { return __fsqrt_rn(a); }

__device__ __forceinline__ float float_of(u32 bits) {
    union { u32 bits; float number; } same = {bits};
    return same.number;
}

__device__ __forceinline__ u32 bits_of(float number) {
    union { float number; u32 bits; } same = {number};
    return same.bits;
}

// Return the float32 equal to a float of this kind.
__device__ __forceinline__ float widened(u32 bits, u32 kind) {
    if (kind == WIDE) return float_of(bits);
    if (kind == BFLOAT16) return float_of(bits << 16);
    u32 sign = (bits & 0x8000) << 16, magnitude = (bits & 0x7FFF) << 13;
    if ((bits & 0x7C00) == 0x7C00) return float_of(sign | magnitude | 0x7F800000);
    float size = magnitude >= 0x800000 ? float_of(magnitude + 0x38000000)
                                       : minus(float_of(magnitude + 0x38800000), float_of(0x38800000));
    return float_of(bits_of(size) | sign);
}

// An array of a tensor, from the block's first value on.
struct Floats {
    const void *data;     // null where it is missing
    u32 kind;

    __device__ __forceinline__ float operator[](u32 i) const {
        return widened(kind == WIDE ? ((const u32 *)data)[i] : ((const u16 *)data)[i], kind);
    }
};

__device__ __forceinline__ float min_size(float a, float b) {
    float low = a < b ? a : b, high = a < b ? b : a;
    return low > -high ? low : -high;
}

__device__ __forceinline__ float min_square(float g, float size, float decay, float sign, float reach, const Limits &l) {
    float low = minus(fabsf(plus(times(sign, g), decay)), plus(times(reach, size), times(l.margin, fabsf(decay))));
    low = low < l.zero ? l.zero : low;
    return times(low, low);
}

__device__ __forceinline__ float or_nothing(float n, float size, float square, const Limits &l) {
    return size <= l.max_grad && square <= l.max_past ? n : l.zero;
}

// SGD: U = slope * |g|, N = keep * theta - carry * b.
struct LinearRule {
    float keep, carry, slope;
    Limits l;

    __device__ __forceinline__ Sides operator()(float theta, float g, const Floats *state, u32 i) const {
        float x = times(keep, theta), n = minus(fabsf(x), times(l.margin, fabsf(x)));
        if (state[0].data) {
            float b = state[0][i], y = times(carry, fabsf(b) < l.faint ? l.zero : b);
            n = minus(fabsf(minus(x, y)), plus(times(l.margin, plus(fabsf(x), fabsf(y))), l.lost));
        }
        float a = fabsf(g), u = times(slope, a < l.min_grad ? l.min_grad : a);
        return {u < l.floor ? l.floor : u, n};
    }
};

// AdaGrad and RMSProp: U = slope * |g|, N = theta * D - carry * b * D - drift * theta.
struct AccumulatorRule {
    float carry, drift, slope, sign, decay, reach, old, fresh, eps;
    Limits l;

    __device__ __forceinline__ Sides operator()(float theta, float g, const Floats *state, u32 i) const {
        float square = state[0][i], a = fabsf(g), size = a < l.min_grad ? l.raised : a, v = times(old, square);
        if (fresh != l.zero) v = plus(v, times(fresh, min_square(g, size, times(decay, theta), sign, reach, l)));
        v = fabsf(v) < l.floor ? l.zero : v;
        float d = plus(root(v), eps), x = theta, parts = fabsf(x);
        if (state[1].data) {
            float b = state[1][i], y = times(carry, fabsf(b) < l.faint ? l.zero : b);
            x = minus(x, y);
            parts = plus(parts, fabsf(y));
        }
        x = times(x, d);
        float z = times(drift, theta), error = plus(times(l.margin, plus(times(parts, d), fabsf(z))), times(l.lost, d));
        float n = or_nothing(minus(min_size(x, minus(x, z)), error), a, square, l), u = times(slope, size);
        return {u < l.floor ? l.floor : u, n};
    }
};

// Adam and AdamW, both sides times D**2.
struct AdamRule {
    float keep, carry, drift, slope, share, spread, quarter, sign, decay, reach, old, fresh, unbias, eps;
    Limits l;

    __device__ __forceinline__ Sides operator()(float theta, float g, const Floats *state, u32 i) const {
        float mean = state[0][i], square = state[1][i];
        float a = fabsf(g), size = a < l.min_grad ? l.raised : a, v = times(old, square);
        if (fresh != l.zero) v = plus(v, times(fresh, min_square(g, size, times(decay, theta), sign, reach, l)));
        if (state[2].data) {
            float most = state[2][i];
            v = plus(v < most ? most : v, times(l.zero, most));
        }
        v = fabsf(v) < l.floor ? l.zero : v;
        float s = times(unbias, root(v)), d = plus(s, eps), m = fabsf(mean), p = times(spread, m < l.faint ? l.faint : m);
        float f = over(times(quarter, p), s);
        f = f < l.one ? f : l.one;
        float u = times(times(slope, size), plus(times(share, d), times(p, f))), x = times(times(keep, theta), d);
        float y = times(carry, m < l.faint ? l.zero : mean), z = times(drift, theta);
        float error = plus(times(l.margin, plus(fabsf(x), plus(fabsf(y), fabsf(z)))), l.lost);
        float n = times(minus(min_size(x, minus(x, plus(y, z))), error), d);
        n = minus(n, minus(n, n));     // that product may be infinite
        n = or_nothing(n, a, square, l);
        return {u < l.floor ? l.floor : u, n};
    }
};

// Adadelta: U = slope * E * |g|, N = theta * D - drift * theta * E.
struct DeltaRule {
    float drift, slope, sign, decay, reach, old, fresh, eps;
    Limits l;

    __device__ __forceinline__ Sides operator()(float theta, float g, const Floats *state, u32 i) const {
        float square = state[0][i], delta = state[1][i];
        float a = fabsf(g), size = a < l.min_grad ? l.raised : a, v = times(old, square);
        if (fresh != l.zero) v = plus(v, times(fresh, min_square(g, size, times(decay, theta), sign, reach, l)));
        v = fabsf(v) < l.floor ? l.zero : v;
        float d = root(plus(v, eps)), w = fabsf(delta) < l.floor ? l.zero : delta, e = root(plus(w, eps));
        float x = times(theta, d), z = times(times(drift, theta), e), error = times(l.margin, plus(fabsf(x), fabsf(z)));
        float n = minus(min_size(x, minus(x, z)), error), u = times(times(slope, size), e);
        n = or_nothing(or_nothing(n, a, square, l), a, delta, l);
        return {u < l.floor ? l.floor : u, n};
    }
};

// Adamax, both sides times D**2.
struct PeakRule {
    float carry, drift, slope, share, spread, sign, decay, reach, old, fresh, eps;
    Limits l;

    __device__ __forceinline__ Sides operator()(float theta, float g, const Floats *state, u32 i) const {
        float mean = state[0][i], peak = state[1][i];
        float a = fabsf(g), size = a < l.min_grad ? l.raised : a, d = eps;
        if (fresh != l.zero) d = plus(d, root(min_square(g, size, times(decay, theta), sign, reach, l)));
        float s = times(old, peak);
        d = plus(s < d ? d : s, times(l.zero, peak));
        float m = fabsf(mean), p = plus(times(share, eps), times(spread, m < l.faint ? l.faint : m)), q = times(share, d);
        float u = times(times(slope, size), q < p ? p : q), x = times(theta, d);
        float y = times(carry, m < l.faint ? l.zero : mean), z = times(drift, theta);
        float error = plus(times(l.margin, plus(fabsf(x), plus(fabsf(y), fabsf(z)))), l.lost);
        float n = times(minus(min_size(x, minus(x, plus(y, z))), error), d);
        n = minus(n, minus(n, n));     // that product may be infinite
        return {u < l.floor ? l.floor : u, n};
    }
};

template <typename Rule>
__device__ __forceinline__ void choose_levels(const LevelArguments &a, LevelShared &shared) {
    const i64 *row = a.rows.data + (i64)a.owner.data[blockIdx.x] * Column::NUMBER;
    u64 start = (u64)(blockIdx.x - (u32)row[Column::BLOCK_AT]) * MAX_VALUES, left = (u64)row[Column::COUNT] - start;
    u32 n = left < MAX_VALUES ? (u32)left : MAX_VALUES, n_thresholds = (u32)row[Column::TOP];
    CHECK(a.constants.shape[1] * 4 == sizeof(Rule) && n_thresholds <= THRESHOLDS);
    if (threadIdx.x < THRESHOLDS) shared.thresholds[threadIdx.x] = a.thresholds.data[row[Column::WHICH] * THRESHOLDS + threadIdx.x];
    Rule rule = *(const Rule *)(a.constants.data + row[Column::WHICH] * (i64)(sizeof(Rule) / 4));
    Floats roles[N_ROLES];
#pragma unroll
    for (u32 r = 0; r < N_ROLES; r++) {
        u64 size = a.kinds[r] == WIDE ? 4 : 2;
        roles[r] = {row[r] < 0 ? nullptr : (const u8 *)a.roles[r].data + ((u64)row[r] + start) * size, a.kinds[r]};
    }
    u8 *out = a.out.data + ((u64)row[Column::OUT] + start);
    __syncthreads();
    for (u32 i = threadIdx.x; i < n; i += THREADS) {
        float g = roles[Column::GRAD][i];
        Sides sides = rule(roles[Column::PARAM][i], g, roles + Column::FIRST, i);
        u32 level = 0;
        for (u32 j = 0; j < n_thresholds; j++) level += times(shared.thresholds[j], sides.u) <= sides.n;
        out[i] = (u8)(g == 0 ? n_thresholds : level);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) choose_linear(const __grid_constant__ LevelArguments a) {
    __shared__ LevelShared shared;
    choose_levels<LinearRule>(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS) choose_accumulator(const __grid_constant__ LevelArguments a) {
    __shared__ LevelShared shared;
    choose_levels<AccumulatorRule>(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS) choose_adam(const __grid_constant__ LevelArguments a) {
    __shared__ LevelShared shared;
    choose_levels<AdamRule>(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS) choose_delta(const __grid_constant__ LevelArguments a) {
    __shared__ LevelShared shared;
    choose_levels<DeltaRule>(a, shared);
}

extern "C" __global__ void __launch_bounds__(THREADS) choose_peak(const __grid_constant__ LevelArguments a) {
    __shared__ LevelShared shared;
    choose_levels<PeakRule>(a, shared);
}
