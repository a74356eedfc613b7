#pragma once

#include <span>

// The functions that compiled kernels call.
namespace torch_remote::codegen::emulator {

// Names in compiled code. Their types are in runtime.cpp.
inline constexpr const char* kRegistersFunction = "emulator.registers";
inline constexpr const char* kBarrierFunction = "emulator.barrier";
inline constexpr const char* kWarpFunction = "emulator.warp";
inline constexpr const char* kAccessFunction = "emulator.access";
inline constexpr const char* kLocalFunction = "emulator.local";
inline constexpr const char* kFenceFunction = "emulator.fence";
inline constexpr const char* kLoopIterationFunction = "emulator.turn";
inline constexpr const char* kYieldFunction = "emulator.yield";
inline constexpr const char* kExitFunction = "emulator.exit";
inline constexpr const char* kTrapFunction = "emulator.trap";
inline constexpr const char* kDirected32Function = "emulator.directed.f32";
inline constexpr const char* kDirected64Function = "emulator.directed.f64";

// Arithmetic with a rounding mode other than to nearest.
enum class Directed : unsigned { kAdd, kMul, kDiv, kFma, kSqrt, kRcp };

struct RuntimeSymbol {
  const char* name;
  void* address;
};
// The functions above, the conversions that code generation calls, and the C library functions that it makes from
// intrinsics.
std::span<const RuntimeSymbol> runtime_symbols();

}  // namespace torch_remote::codegen::emulator
