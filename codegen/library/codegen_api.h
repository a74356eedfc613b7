#pragma once

// The C ABI of libtorch_remote_codegen.so: who opens it shares no C++ library with it, and pays for LLVM only then.

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Changes when the meaning of a field does.
#define TR_CODEGEN_ABI 3
#define TR_CODEGEN_ENTRY "torch_remote_codegen_api"

// Variant (codegen/cpu/call.h).
typedef struct tr_variant {
  size_t struct_size;
  int streams;
  int64_t columns;
} tr_variant;

// What is made: machine code that can lie anywhere (codegen/cpu/compile.h), or what is wrong.
typedef struct tr_code {
  size_t struct_size;
  // Called once, from within the call that compiles; copies the bytes.
  void (*take)(void* context, const uint8_t* bytes, size_t size);
  void* context;
  uint32_t rows;       // where RowsFunction begins
  uint32_t finish;     // where FinishFunction begins; as `rows` if the kernel has none
  char message[1024];  // NUL terminated
} tr_code;

// What is made for a GPU.
typedef struct tr_gpu_code {
  size_t struct_size;
  // Each called once, from within the call that compiles; they copy the bytes. `take_image`: PTX, which ends with 0
  // (and the size counts that). `take_recipe`: how it is launched (codegen/gpu/launch.h, `decode`).
  void (*take_image)(void* context, const uint8_t* bytes, size_t size);
  void (*take_recipe)(void* context, const uint8_t* bytes, size_t size);
  void* context;
  int unsupported;     // out: 1: it makes no code of such a kernel
  char message[1024];  // NUL terminated
} tr_gpu_code;

typedef struct tr_codegen_api {
  size_t struct_size;
  uint32_t abi;
  const char* version;  // of the compiler: "LLVM 19.1.7, codegen 1"
  // The kernel in LoopIR's text form, for "x86-64-v4" or "x86-64-v3". 0, or 1 with a message. Any thread, any number at
  // once.
  int (*compile_cpu)(const char* text, size_t size, const char* target, const tr_variant* variant, tr_code* code);
  // Likewise for processors of that number: 80, 90 or 100.
  int (*compile_gpu)(const char* text, size_t size, uint32_t sm, tr_gpu_code* code);
} tr_codegen_api;

typedef const tr_codegen_api* (*tr_codegen_entry)(void);

#ifdef __cplusplus
}
#endif
