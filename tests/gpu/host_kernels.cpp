// The CUDA C++ kernels as functions of a library for the host; see host_threads.h.
#include "host_threads.h"

#include "decode.cu"
#include "encode.cu"

// A kernel, each of whose blocks gets shared memory of this type, filled with anything.
template <typename Shared, typename Arguments, void (*BODY)(const Arguments &, Shared &)>
struct Kernel {
    static inline const Arguments *arguments;
    static inline Shared *shared;
    static inline bool falling;

    static void thread() { BODY(*arguments, *shared); }
    static void prepare() { memset((void *)shared, falling ? 0xFF : 0x5A, sizeof(Shared)); }

    // Return the bytes of the arguments.
    static unsigned run(const void *given, unsigned blocks, unsigned order) {
        arguments = (const Arguments *)given;
        falling = order;
        shared = (Shared *)aligned_alloc(16, (sizeof(Shared) + 15) & ~15ul);
        host_threads::run(thread, prepare, blocks, THREADS, falling);
        free(shared);
        return sizeof(Arguments);
    }
};

template <typename V>
using Decode = Kernel<DecodeShared, DecodeArguments<V>, decode_blocks<V>>;
template <typename V>
using Encode = Kernel<EncodeShared, EncodeArguments<V>, encode_blocks<V>>;

extern "C" unsigned decode_float32_on_host(const void *a, unsigned n, unsigned f) { return Decode<u32>::run(a, n, f); }
extern "C" unsigned decode_float16_on_host(const void *a, unsigned n, unsigned f) { return Decode<u16>::run(a, n, f); }
extern "C" unsigned encode_float32_on_host(const void *a, unsigned n, unsigned f) { return Encode<u32>::run(a, n, f); }
extern "C" unsigned encode_float16_on_host(const void *a, unsigned n, unsigned f) { return Encode<u16>::run(a, n, f); }
