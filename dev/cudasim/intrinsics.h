// intrinsics: device functions of one thread that the CUDA headers declare for nvcc only. Approximations (__expf, …)
// are the host's exact functions here, so tests against a GPU's results need a tolerance.
#ifndef DEV_CUDASIM_INTRINSICS_H
#define DEV_CUDASIM_INTRINSICS_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace cudasim {
template <class To, class From>
To bit_cast(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
}  // namespace cudasim

// ---- bits ----
inline int __float_as_int(float x) {
    return cudasim::bit_cast<int>(x);
}
inline unsigned __float_as_uint(float x) {
    return cudasim::bit_cast<unsigned>(x);
}
inline float __int_as_float(int x) {
    return cudasim::bit_cast<float>(x);
}
inline float __uint_as_float(unsigned x) {
    return cudasim::bit_cast<float>(x);
}
inline int __popc(unsigned x) {
    return __builtin_popcount(x);
}
inline int __clz(int x) {
    return x ? __builtin_clz(static_cast<unsigned>(x)) : 32;
}
inline int __ffs(int x) {
    return __builtin_ffs(x);
}
inline unsigned __umulhi(unsigned a, unsigned b) {
    return static_cast<unsigned>((static_cast<uint64_t>(a) * b) >> 32);
}

// ---- arithmetic ----
using std::isfinite;
using std::isinf;
using std::isnan;
template <class A, class B>
constexpr std::common_type_t<A, B> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    return static_cast<T>(a) > static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
template <class A, class B>
constexpr std::common_type_t<A, B> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(a) : static_cast<T>(b);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __fdividef(float a, float b) {
    return a / b;
}
inline float __fsqrt_rn(float a) {
    return sqrtf(a);
}
inline float __frcp_rn(float a) {
    return 1.0f / a;
}
inline float __fmaf_rn(float a, float b, float c) {
    return fmaf(a, b, c);
}
inline float rsqrtf(float x) {
    return 1.0f / sqrtf(x);
}
inline float __expf(float x) {
    return expf(x);
}
inline float __logf(float x) {
    return logf(x);
}
inline float __saturatef(float x) {
    return x >= 0.0f ? (x <= 1.0f ? x : 1.0f) : 0.0f;  // NaN gives 0
}

// ---- loads and stores with cache hints: plain ones here ----
#define CUDASIM_LOAD(name)     \
    template <class T>         \
    T name(const T *address) { \
        return *address;       \
    }
CUDASIM_LOAD(__ldg)
CUDASIM_LOAD(__ldcs)
CUDASIM_LOAD(__ldcg)
CUDASIM_LOAD(__ldca)
CUDASIM_LOAD(__ldlu)
#undef CUDASIM_LOAD
#define CUDASIM_STORE(name)          \
    template <class T>               \
    void name(T *address, T value) { \
        *address = value;            \
    }
CUDASIM_STORE(__stcs)
CUDASIM_STORE(__stcg)
CUDASIM_STORE(__stwt)
CUDASIM_STORE(__stwb)
#undef CUDASIM_STORE

#endif
