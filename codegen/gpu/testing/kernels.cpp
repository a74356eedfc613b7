#include "codegen/gpu/testing/kernels.h"

#include <cstdio>
#include <cstdlib>

namespace torch_remote::codegen::gpu::testing {

const std::vector<NamedKernel>& named_kernels() {
  static const std::vector<NamedKernel> kernels = {
      {"add",
       R"(kernel(| j0) {
        a0: f32[j0]
        a1: f32[j0]
        a2: f32[j0]
        %0: f32 = load a0
        %1: f32 = load a1
        %2: f32 = add %0, %1
        store a2, %2
      })",
       {{0}, {1}, {3}, {1024}, {100003}}},
      {"gelu",
       R"(kernel(| j0) {
        a0: f32[j0]
        a1: f32[j0]
        %0: f32 = load a0
        %1: f32 = constant 0.7071067811865476
        %2: f32 = mul %0, %1
        %3: f32 = erf %2
        %4: f32 = constant 1
        %5: f32 = add %3, %4
        %6: f32 = constant 0.5
        %7: f32 = mul %0, %6
        %8: f32 = mul %7, %5
        store a1, %8
      })",
       {{5}, {4097}}},
      {"swiglu_bf16",
       R"(kernel(i0 | j0) {
        a0: bf16[i0, j0]
        a1: bf16[i0, j0]
        a2: bf16[i0, j0]
        %0: f32 = load a0
        %1: f32 = sigmoid %0
        %2: f32 = mul %0, %1
        %3: f32 = load a1
        %4: f32 = mul %2, %3
        store a2, %4
      })",
       {{3, 5}, {17, 136}, {1, 1031}}},
      {"bf16_chain",
       R"(kernel(i0 | j0) {
        s0: f64
        a0: bf16[i0, j0]
        a1: bf16[j0]
        a2: bf16[i0, j0]
        a3: bf16[i0, j0]
        a4: f16[i0]
        %0: f32 = load a0
        %1: f32 = load a1
        %2: f32 = add %0, %1
        %3: f32 = constant 0
        %4: f32 = max %2, %3
        %5: f64 = scalar s0
        %6: f32 = convert %5
        %7: f32 = mul %4, %6
        %8: f32 = load a2
        %9: f32 = load a4
        %10: f32 = fma %8, %9, %7
        store a3, %10
      })",
       {{3, 8}, {9, 129}, {40, 64}}},
      {"strided",
       R"(kernel(i0, i1 | j0, j1) {
        a0: f32[i0, i1, j0, j1*]
        a1: f32[i1, j1]
        a2: f32[i0, i1, j0, j1]
        %0: f32 = load a0
        %1: f32 = load a1
        %2: f32 = mul %0, %1
        store a2, %2
      })",
       {{2, 3, 4, 5}, {3, 1, 7, 33}, {2, 2, 0, 9}}},
      {"types",
       R"(kernel(i0 | j0) {
        a0: i32[i0, j0]
        a1: u8[i0, j0]
        a2: bool[i0, j0]
        a3: i64[j0]
        a4: f64[i0, j0]
        a5: i16[i0, j0]
        a6: i8[i0, j0]
        %0: i32 = load a0
        %1: u8 = load a1
        %2: i32 = convert %1
        %3: i32 = div %0, %2
        %4: bool = load a2
        %5: i64 = load a3
        %6: i64 = convert %3
        %7: i64 = where %4, %5, %6
        %8: f64 = convert %7
        %9: f64 = sqrt %8
        store a4, %9
        %10: i16 = convert %7
        store a5, %10
        %11: i8 = convert %2
        store a6, %11
      })",
       {{2, 3}, {5, 67}, {8, 256}}},
      {"softmax",
       R"(kernel(i0 | j0) {
        a0: f32[i0, j0]
        a1: f32[i0, j0]
        %0: f32 = load a0
        %1: f32 = columns max %0
        %2: f32 = sub %0, %1
        %3: f32 = exp %2
        %4: f32 = columns sum %3
        %5: f32 = div %3, %4
        store a1, %5
      })",
       {{3, 1}, {5, 100}, {11, 512}, {3, 1000}, {2, 8192}, {2, 8193}, {1, 20011}}},
      {"softmax_bf16",
       R"(kernel(i0 | j0) {
        a0: bf16[i0, j0]
        a1: bf16[i0, j0]
        %0: f32 = load a0
        %1: f32 = columns max %0
        %2: f32 = sub %0, %1
        %3: f32 = exp %2
        %4: f32 = columns sum %3
        %5: f32 = div %3, %4
        store a1, %5
      })",
       {{5, 72}, {9, 512}, {3, 1000}}},
      {"layer_norm",
       R"(kernel(i0 | j0) {
        s0: f64
        a0: f32[i0, j0]
        a1: f32[j0]
        a2: f32[j0]
        a3: f32[i0, j0]
        a4: f32[i0]
        a5: f32[i0]
        %0: f32 = load a0
        %1: f32 = constant 0.001
        %2: f32 = columns sum %0
        %3: f32 = mul %2, %1
        %4: f32 = sub %0, %3
        %5: f32 = mul %4, %4
        %6: f32 = columns sum %5
        %7: f32 = mul %6, %1
        %8: f64 = scalar s0
        %9: f32 = convert %8
        %10: f32 = abs %9
        %11: f32 = add %7, %10
        %12: f32 = rsqrt %11
        %13: f32 = mul %4, %12
        %14: f32 = load a1
        %15: f32 = load a2
        %16: f32 = fma %13, %14, %15
        store a3, %16
        store a4, %3
        store a5, %12
      })",
       {{5, 100}, {9, 768}, {3, 4100}, {2, 9000}}},
      {"layer_norm_backward",
       R"(kernel(i0 | j0) {
        a0: f32[i0, j0]
        a1: f32[i0, j0]
        a2: f32[j0]
        a3: f32[i0]
        a4: f32[i0]
        a5: f32[i0, j0]
        a6: f32[j0]
        a7: f32[j0]
        %0: f32 = load a0
        %1: f32 = load a1
        %2: f32 = load a2
        %3: f32 = load a3
        %4: f32 = load a4
        %5: f32 = sub %1, %3
        %6: f32 = mul %5, %4
        %7: f32 = mul %0, %2
        %8: f32 = columns sum %7
        %9: f32 = mul %7, %6
        %10: f32 = columns sum %9
        %11: f32 = constant 0.001
        %12: f32 = mul %8, %11
        %13: f32 = mul %10, %11
        %14: f32 = sub %7, %12
        %15: f32 = mul %6, %13
        %16: f32 = sub %14, %15
        %17: f32 = mul %16, %4
        store a5, %17
        %18: f32 = mul %0, %6
        %19: f32 = rows sum %18
        store a6, %19
        %20: f32 = rows sum %0
        store a7, %20
      })",
       {{9, 100}, {70, 768}, {5, 9001}, {0, 12}}},
      {"rms_norm_bf16",
       R"(kernel(i0 | j0) {
        a0: bf16[i0, j0]
        a1: bf16[j0]
        a2: bf16[i0, j0]
        %0: f32 = load a0
        %1: f32 = mul %0, %0
        %2: f32 = columns sum %1
        %3: f32 = constant 0.001
        %4: f32 = fma %2, %3, %3
        %5: f32 = rsqrt %4
        %6: f32 = mul %0, %5
        %7: f32 = load a1
        %8: f32 = mul %6, %7
        store a2, %8
      })",
       {{3, 96}, {5, 4096}, {19, 1000}}},
      {"cross_entropy",
       R"(kernel(i0 | j0) {
        a0: f32[i0, j0]
        a1: i64[i0]
        a2: f32[_, i0]
        a3: f32[]
        a4: f32[i0, j0]
        %0: f32 = load a0
        %1: f32 = columns max %0
        %2: f32 = sub %0, %1
        %3: f32 = exp %2
        %4: f32 = columns sum %3
        %5: f32 = log %4
        %6: f32 = sub %2, %5
        store a4, %6
        %7: i64 = load a1
        %8: f32 = load a2[%7]
        %9: f32 = sub %8, %1
        %10: f32 = sub %9, %5
        %11: f32 = neg %10
        %12: f32 = rows sum %11
        store a3, %12
      })",
       {{5, 10}, {33, 1000}, {2, 9000}},
       {10}},
      {"column_sums",
       R"(kernel(i0 | j0) {
        a0: f32[i0, j0]
        a1: f32[j0]
        %0: f32 = load a0
        %1: f32 = rows sum %0
        store a1, %1
      })",
       {{1, 4}, {0, 4}, {100, 7}, {1000, 33}, {19, 1024}, {3, 0}}},
      {"sum",
       R"(kernel(i0 | j0) {
        a0: f32[i0, j0]
        a1: f32[]
        %0: f32 = load a0
        %1: f32 = columns sum %0
        %2: f32 = rows sum %1
        store a1, %2
      })",
       {{1, 5}, {3, 4096}, {200, 64}, {0, 4096}}},
      {"argmax",
       R"(kernel(i0 | j0) {
        a0: f32[i0, j0]
        a1: i64[i0]
        a2: f32[i0]
        %0: f32 = load a0
        %1: i64 = columns argmax %0
        %2: f32 = columns max %0
        store a1, %1
        store a2, %2
      })",
       {{3, 1}, {5, 100}, {3, 5000}, {2, 9000}, {4, 0}}},
      {"dropout",
       R"(kernel(i0 | j0) {
        s0: i64
        s1: i64
        s2: f64
        a0: f32[i0, j0]
        a1: f32[i0, j0]
        a2: bool[i0, j0]
        %0: i64 = scalar s0
        %1: i64 = scalar s1
        %2: i64 = index i0
        %3: i64 = constant 1000
        %4: i64 = mul %2, %3
        %5: i64 = index j0
        %6: i64 = add %4, %5
        %7: i32 = random %0, %1, %6
        %8: f64 = scalar s2
        %9: f32 = convert %8
        %10: f32 = convert %7
        %11: f32 = constant 2147483648
        %12: f32 = div %10, %11
        %13: bool = lt %12, %9
        %14: f32 = load a0
        %15: f32 = constant 0
        %16: f32 = where %13, %14, %15
        store a1, %16
        store a2, %13
      })",
       {{2, 7}, {5, 1000}}},
      {"embedding",
       R"(kernel(i0 | j0) {
        a0: i64[i0]
        a1: f32[_, j0]
        a2: f32[i0, j0]
        %0: i64 = load a0
        %1: f32 = load a1[%0]
        store a2, %1
      })",
       {{5, 3}, {31, 64}, {9, 130}},
       {10}},
      {"scatter",
       R"(kernel(i0 | j0) {
        a0: i64[i0, j0]
        a1: i32[_]
        a2: i32[i0, j0]
        %0: i64 = load a0
        %1: i32 = load a2
        store a1[%0], %1 adds
      })",
       {{5, 3}, {31, 64}},
       {10}},
      {"adamw",
       R"(kernel(| j0) {
        s0: f64
        s1: f64
        s2: f64
        a0: f32[j0]
        a1: f32[j0]
        a2: f32[j0]
        a3: f32[j0]
        a4: f32[j0]
        a5: f32[j0]
        a6: f32[j0]
        %0: f32 = load a0
        %1: f32 = load a1
        %2: f32 = load a2
        %3: f32 = load a3
        %4: f64 = scalar s0
        %5: f32 = convert %4
        %6: f64 = scalar s1
        %7: f32 = convert %6
        %8: f64 = scalar s2
        %9: f32 = convert %8
        %10: f32 = mul %0, %5
        %11: f32 = sub %1, %2
        %12: f32 = fma %11, %7, %2
        %13: f32 = mul %1, %1
        %14: f32 = sub %13, %3
        %15: f32 = fma %14, %9, %3
        %16: f32 = abs %15
        %17: f32 = sqrt %16
        %18: f32 = constant 1e-8
        %19: f32 = add %17, %18
        %20: f32 = div %12, %19
        %21: f32 = fma %20, %5, %10
        store a4, %21
        store a5, %12
        store a6, %15
      })",
       {{9}, {10000}}},
      {"adamw_of_seven",
       R"(kernel(| j0) {
        s0: f64
        s1: f64
        s2: f64
        s3: f64
        s4: f64
        s5: f64
        s6: f64
        a0: f32[j0]
        a1: f32[j0]
        a2: f32[j0]
        a3: f32[j0]
        %0: f32 = load a0
        %1: f32 = load a1
        %2: f32 = load a2
        %3: f32 = load a3
        %4: f64 = scalar s0
        %5: f32 = convert %4
        %6: f64 = scalar s1
        %7: f32 = convert %6
        %8: f64 = scalar s2
        %9: f32 = convert %8
        %10: f64 = scalar s3
        %11: f32 = convert %10
        %12: f64 = scalar s4
        %13: f32 = convert %12
        %14: f64 = scalar s5
        %15: f32 = convert %14
        %16: f64 = scalar s6
        %17: f32 = convert %16
        %18: f32 = mul %0, %5
        %19: f32 = sub %1, %2
        %20: f32 = fma %19, %7, %2
        %21: f32 = mul %3, %9
        %22: f32 = mul %1, %1
        %23: f32 = fma %22, %11, %21
        %24: f32 = sqrt %23
        %25: f32 = div %24, %13
        %26: f32 = add %25, %15
        %27: f32 = div %20, %26
        %28: f32 = fma %27, %17, %18
        store a0, %28
        store a2, %20
        store a3, %23
      })",
       {{9}, {10000}}},
  };
  return kernels;
}

const NamedKernel& named_kernel(std::string_view name) {
  for (const NamedKernel& kernel : named_kernels()) {
    if (kernel.name == name) return kernel;
  }
  std::fprintf(stderr, "no kernel is called %.*s\n", static_cast<int>(name.size()), name.data());
  std::abort();
}

}  // namespace torch_remote::codegen::gpu::testing
