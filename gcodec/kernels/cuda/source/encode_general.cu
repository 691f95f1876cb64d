// Encoding to planes of any widths, and by codebooks with references or without: whatever the narrow encoders leave.
#include "encode_planes.cuh"

extern "C" __global__ void __launch_bounds__(THREADS, 3)
encode_general_float32(const __grid_constant__ EncodeArguments<u32> a) {
    __shared__ PlanesEncoder<true> shared;
    encode_planes(a, shared);
}

// bfloat16 and float16, which are cut alike.
extern "C" __global__ void __launch_bounds__(THREADS, 3)
encode_general_float16(const __grid_constant__ EncodeArguments<u16> a) {
    __shared__ PlanesEncoder<true> shared;
    encode_planes(a, shared);
}
