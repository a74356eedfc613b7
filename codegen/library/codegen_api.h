#pragma once

// The C ABI of libtorch_remote_codegen.so. A program that opens the library shares no C++ library with it, and loads
// LLVM only then.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Grows when the meaning of a field changes. The caller sets struct_size in the structs that it passes.
#define TR_CODEGEN_ABI 3
#define TR_CODEGEN_ENTRY "torch_remote_codegen_api"

// The C form of Variant (codegen/cpu/call.h).
typedef struct tr_variant {
  size_t struct_size;
  int streams;  // 0 or 1
  int64_t columns;
} tr_variant;

// The output of compile_cpu: position-independent machine code (codegen/cpu/compile.h), or an error message. The caller
// sets the function and `context`. Outputs that do not apply are left as they are.
typedef struct tr_cpu_code {
  size_t struct_size;
  // Called once during a compile_cpu that succeeds, on the calling thread; must copy the bytes.
  void (*on_code)(void* context, const uint8_t* bytes, size_t size);
  void* context;
  uint32_t rows;       // offset of RowsFunction in the bytes
  uint32_t finish;     // offset of FinishFunction; equals `rows` if the kernel has none
  char message[1024];  // why compile_cpu failed; NUL terminated, cut if it is longer
} tr_cpu_code;

// The output of compile_gpu. The caller sets the functions and `context`. Outputs that do not apply are left as they
// are.
typedef struct tr_gpu_code {
  size_t struct_size;
  // Each is called once during a compile_gpu that succeeds, on the calling thread, and must copy the bytes. `on_image`
  // receives PTX; its size includes the terminating 0. `on_recipe` receives how to launch the code
  // (codegen/gpu/launch.h, `decode`).
  void (*on_image)(void* context, const uint8_t* bytes, size_t size);
  void (*on_recipe)(void* context, const uint8_t* bytes, size_t size);
  void* context;
  int unsupported;     // set only if compile_gpu failed: 1 if this kernel cannot be compiled for this GPU, else 0
  char message[1024];  // why compile_gpu failed; NUL terminated, cut if it is longer
} tr_gpu_code;

typedef struct tr_codegen_api {
  size_t struct_size;
  uint32_t abi;
  const char* version;  // of the compiler, such as "LLVM 19.1.7, codegen 4"
  // Compiles a kernel in LoopIR's text form for "x86-64-v4" or "x86-64-v3"; a library for aarch64, for "aarch64".
  // Returns 0, or 1 with a message. Any number of threads may call it at once.
  int (*compile_cpu)(const char* text, size_t size, const char* target, const tr_variant* variant, tr_cpu_code* code);
  // Compiles a kernel for GPUs of compute capability `sm`: 80, 90 or 100. Otherwise as compile_cpu.
  int (*compile_gpu)(const char* text, size_t size, uint32_t sm, tr_gpu_code* code);
} tr_codegen_api;

typedef const tr_codegen_api* (*tr_codegen_entry)(void);

#ifdef __cplusplus
}
#endif
