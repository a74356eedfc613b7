#pragma once

// The C ABI between the worker and a plugin: a runner (worker/runner/runner.h) in a shared library of its own, as
// ATen's is. Plain C: host and plugin share no C++ library. Every struct begins with its size, so that fields can be
// added at the end; TR_RUNNER_ABI changes when the meaning of one changes, and a plugin with another number is refused.
//
// Threads: one thread at a time per runner.

#include <stddef.h>
#include <stdint.h>

#include "worker/device/buffer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TR_RUNNER_ABI 8
#define TR_RUNNER_ENTRY "torch_remote_runner_api"

typedef struct tr_runner tr_runner;
typedef struct tr_program tr_program;

typedef struct tr_error {
  size_t struct_size;
  char kind[32];       // Python exception class: "RuntimeError", "IndexError", "OutOfMemoryError", ...
  char message[4000];  // NUL terminated
  uint32_t node;       // which node failed
  // 1: the group that begins with `node` could not be done as one, and no memory that it reads has changed: its nodes
  // are to be done one by one, and say what is wrong.
  uint32_t repeat;
} tr_error;

// What the client's process does.
typedef enum tr_client {
  TR_CLIENT_RESTS = 0,     // on this machine nothing
  TR_CLIENT_LOOKS = 1,     // waits, and looks for the answer all the time
  TR_CLIENT_COMPUTES = 2,  // uses a core; or other processes do
} tr_client;

struct tr_product;

// What the host gives: memory, and what it knows of the client. allocate returns 0, or 1 if there is none.
typedef struct tr_host {
  size_t struct_size;
  uint32_t abi;
  void* context;
  int (*allocate)(void* context, uint64_t nbytes, tr_buffer* buffer);
  // May be null. To be asked inside of run, before an op of tens of microseconds: a runner whose threads would take
  // all cores should leave one to a client that needs it.
  tr_client (*client_activity)(void* context);
  // May be null. In which way (tr_product_way) a product of such sizes is done fastest; its matrices need no data.
  int (*product_way)(void* context, const struct tr_product* product);
  // 1: buffers are memory of a GPU, and all that runs do is to be queued on a stream there, whose context (the GPU's
  // primary one) is current in every call. A run returns when its work is queued; what it finds wrong with data it
  // waits for.
  int has_gpu;
  int gpu;                  // its number
  void* gpu_stream;         // CUstream
  const char* gpu_library;  // the file with torch's kernels for it; null: libtorch_cuda.so beside libtorch_cpu.so
} tr_host;

// How a program is to be loaded.
typedef struct tr_load_options {
  size_t struct_size;
  int tune;              // its first runs may time several ways to run it, and later ones use the fastest
  const uint8_t* nodes;  // one a node: whether runs may ask for it; null: for any
} tr_load_options;

// What a runner keeps beside the contents of a buffer, made from them (weights in another order). Both fields are null,
// or the runner's own, and so is the meaning of `data`. The host calls release(data) and sets both to null when the
// contents may change, and when the buffer goes.
typedef struct tr_attachment {
  void* data;
  void (*release)(void* data);
} tr_attachment;

// One run of nodes [first, last) of a program.
typedef struct tr_run {
  size_t struct_size;
  const int64_t* symbols;  // values of the graph's symbols: parameters, then expressions
  uint32_t
      symbols_changed;   // 0: the same as in the program's last run (sizes, scalars and offsets can stay as they are)
  uint32_t first, last;  // nodes
  tr_buffer* buffers;    // one a graph buffer. In: data set, or null for one that a node of this range creates (runner
                       // then allocates it or hands over what the op returned). Out: filled in; null again for one that
                       // the runner made, that does not survive and that no later node needs.
  uint32_t buffer_count;
  // Dynamic and host results of the range's nodes, as in RunReply (remote/wire/wire.fbs): for each dynamic view dtype,
  // rank, sizes, strides.
  int64_t* words;
  uint32_t word_capacity;
  uint32_t word_count;  // out
  // Null, or where the runner says when each node began: last - first + 1 times, CLOCK_MONOTONIC in ns; the last one
  // is when the last node ended. After a failure those behind error->node are as they were.
  uint64_t* times;
  uint64_t number;  // of the run, for failures that are found later; 0: there are none such
  // Null, or one a graph buffer: null, or of an input that this program does not write.
  tr_attachment* const* attachments;
  // ir::MathModes. On this machine: with kDeterministic the same ops on the same operands give the same bits at any
  // time and load, with as many threads.
  uint32_t math;
} tr_run;

// How a product is done.
typedef enum tr_product_way {
  TR_PRODUCT_AS_OP = 0,   // as an op of a program would be
  TR_PRODUCT_ONEDNN = 1,  // float32, by oneDNN's kernels, which ops of that type have not on x86-64
} tr_product_way;

// A matrix, or one of each of a batch: element (b, r, c) lies b * batch + r * row + c * column elements behind `data`.
typedef struct tr_matrix {
  void* data;
  int64_t batch, row, column;
} tr_matrix;

// A product of matrices, apart from any program: result [rows, columns] = left [rows, depth] times right
// [depth, columns], and what is added [rows, columns] if that has data; all of them of one dtype.
typedef struct tr_product {
  size_t struct_size;
  int dtype;        // ir::DType
  int way;          // tr_product_way
  int64_t batches;  // 0: one of each
  int64_t rows, columns, depth;
  tr_matrix left, right, added, result;
} tr_product;

typedef struct tr_runner_api {
  size_t struct_size;
  uint32_t abi;
  const char* description;  // "ATen 2.13.0"
  // `inproc`: the host is a user's own process: do not touch global state of libtorch (allocator, thread count).
  int (*create)(const tr_host* host, int threads, int inproc, tr_runner** runner, tr_error* error);
  void (*destroy)(tr_runner* runner);
  // `program`: a flatbuffer of ir/program.fbs that the host has verified. 0, or non-zero with *error.
  int (*load)(tr_runner* runner, const uint8_t* program, size_t size, const tr_load_options* options, tr_program** out,
              tr_error* error);
  void (*unload)(tr_runner* runner, tr_program* program);
  // 0, or non-zero with *error: nodes before error->node ran, that one did not, later ones were not tried.
  int (*run)(tr_runner* runner, tr_program* program, tr_run* run, tr_error* error);
  // 1 if the runner makes the memory of this graph buffer itself (an op without a real out variant): the host must
  // not allocate it beforehand.
  int (*creates_buffer)(const tr_program* program, uint32_t buffer);
  // Calls body(context, begin, end) for parts of [0, count), on the runner's threads where the parts are at least
  // `grain`; returns when all of it was done. So that one pool of threads exists. Not inside of run.
  void (*parallel_for)(tr_runner* runner, int64_t count, int64_t grain,
                       void (*body)(void* context, int64_t begin, int64_t end), void* context);
  // 1 if programs may have the op of this name ("aten::add.Tensor").
  int (*has_op)(tr_runner* runner, const char* name);
  // The host is about to wait, for nobody knows how long: threads that spin should sleep.
  void (*rest)(tr_runner* runner);
  // Does it, with as many threads as an op of a program would have. 0, or 1 if it cannot; operands are as they were.
  // May be null, and be missing. Not inside of run.
  int (*multiply)(tr_runner* runner, const tr_product* product);
  // A run begins. `much`: what its calls of parallel_for do is together worth waking threads, even if each is little.
  // May be null, and be missing.
  void (*begin)(tr_runner* runner, int much);
} tr_runner_api;

typedef const tr_runner_api* (*tr_runner_entry)(void);

#ifdef __cplusplus
}
#endif
