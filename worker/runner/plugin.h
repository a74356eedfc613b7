#pragma once

// The C ABI between the worker and a plugin: a runner (worker/runner/runner.h) in a shared library of its own, such as
// ATen's. It is plain C: host and plugin share no C++ library. Every struct begins with its size, so that fields can be
// added at the end. TR_RUNNER_ABI changes when the meaning of a field changes; a plugin with another number is refused.
//
// Threads: a runner is used by one thread at a time.

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
  char exception_type[32];  // Python exception class: "RuntimeError", "IndexError", "OutOfMemoryError", ...
  char message[4000];       // NUL terminated
  uint32_t node;            // The node that failed.
  // 1: the group that begins with `node` could not run as one, and no memory that it reads has changed. Its nodes then
  // run one by one, and report what is wrong.
  uint32_t retry_as_nodes;
} tr_error;

// States what the client's process is doing.
typedef enum tr_client_activity {
  TR_CLIENT_IDLE = 0,       // Nothing on this machine.
  TR_CLIENT_POLLING = 1,    // It waits, and polls for the answer.
  TR_CLIENT_COMPUTING = 2,  // It uses a core, or other processes do.
} tr_client_activity;

struct tr_matmul;

// The host provides these functions and values to a runner. `allocate` returns 0, or 1 if there is no memory.
typedef struct tr_host {
  size_t struct_size;
  uint32_t abi;
  void* context;
  int (*allocate)(void* context, uint64_t nbytes, tr_buffer* buffer);
  // May be null. A runner calls it during a run, before an op of tens of microseconds: if its threads would take all
  // cores, it should leave one to a client that needs it.
  tr_client_activity (*client_activity)(void* context);
  // May be null. Returns the fastest algorithm (tr_matmul_algorithm) for a matmul of these sizes; its matrices need no
  // data.
  int (*matmul_algorithm)(void* context, const struct tr_matmul* matmul);
  // 1: buffers are in the memory of a GPU, and runs queue their work on `gpu_stream`. The GPU's primary context is
  // current in every call. A run returns when its work is queued. It waits for that work only where data decides
  // whether a node fails.
  int has_gpu;
  int gpu;           // Number of the GPU.
  void* gpu_stream;  // CUstream
  // The file with torch's kernels for the GPU; null: libtorch_cuda.so next to libtorch_cpu.so.
  const char* torch_cuda_library;
} tr_host;

// States how to load a program.
typedef struct tr_load_options {
  size_t struct_size;
  int tune;                // The first runs may time several algorithms; later runs use the fastest.
  const uint8_t* may_run;  // One per node: whether runs may ask for it; null: runs may ask for any.
} tr_load_options;

// Data that a runner derives from the contents of a buffer and keeps with it (weights in another layout). Both fields
// are null, or the runner's own; only the runner knows the meaning of `data`. The host calls release(data) and sets
// both to null when the contents may change, and when the buffer is freed.
typedef struct tr_cached_data {
  void* data;
  void (*release)(void* data);
} tr_cached_data;

// One run of nodes [first, last) of a program.
typedef struct tr_run {
  size_t struct_size;
  const int64_t* symbols;  // Values of the graph's symbols: parameters, then expressions.
  // 0: the symbols have the same values as in the program's last run, so the runner need not compute sizes, scalars and
  // offsets again.
  uint32_t symbols_changed;
  uint32_t first, last;  // Range of nodes.
  // One per graph buffer. In: `data` is set, or null for a buffer that a node of this range creates. The runner
  // allocates such a buffer, or hands over what the op returned. Out: filled in; null again for a buffer that the
  // runner allocated, that does not survive, and that no later node needs.
  tr_buffer* buffers;
  uint32_t buffer_count;
  // Dynamic and host results of the range's nodes, as in RunReply (remote/wire/wire.fbs): dtype, rank, sizes and
  // strides for each dynamic view.
  int64_t* result_words;
  uint32_t result_word_capacity;
  uint32_t result_word_count;  // Output.
  // Null, or where the runner writes when each node began: last - first + 1 times, CLOCK_MONOTONIC in ns. The last
  // entry is the end of the last node. After a failure, entries after error->node are unchanged.
  uint64_t* times;
  uint64_t run_id;  // Number of the run, for failures that are found later; 0: no such failures are reported.
  // Null, or one entry per graph buffer. An entry is null unless the buffer is an input that this program does not
  // write.
  tr_cached_data* const* cached_data;
  // ir::MathModes. With kDeterministic, the same ops on the same operands give the same bits on this machine, at any
  // time and load, for the same number of threads.
  uint32_t math_modes;
} tr_run;

// How a matmul is computed.
typedef enum tr_matmul_algorithm {
  TR_MATMUL_AS_OP = 0,   // Like an op of a program.
  TR_MATMUL_ONEDNN = 1,  // float32 with oneDNN's kernels, which torch's ops do not use for this type on x86-64.
} tr_matmul_algorithm;

// A matrix, or a batch of matrices: element (b, r, c) is b * batch_stride + r * row_stride + c * column_stride
// elements after `data`.
typedef struct tr_matrix {
  void* data;
  int64_t batch_stride, row_stride, column_stride;  // Elements.
} tr_matrix;

// A matmul that is not part of a program: result [rows, columns] = left [rows, depth] times right [depth, columns],
// plus `addend` [rows, columns] if that has data. All matrices have one dtype.
typedef struct tr_matmul {
  size_t struct_size;
  int dtype;        // ir::DType
  int algorithm;    // tr_matmul_algorithm
  int64_t batches;  // 0: no batch, one matrix each.
  int64_t rows, columns, depth;
  tr_matrix left, right, addend, result;
} tr_matmul;

typedef struct tr_runner_api {
  size_t struct_size;
  uint32_t abi;
  const char* description;  // "ATen 2.13.0"
  // `inproc`: the host is the user's own process. The runner must not touch global state of libtorch (allocator, thread
  // count).
  int (*create)(const tr_host* host, int threads, int inproc, tr_runner** runner, tr_error* error);
  void (*destroy)(tr_runner* runner);
  // `program`: a flatbuffer of ir/program.fbs that the host has verified. Returns 0, or non-zero with *error.
  int (*load)(tr_runner* runner, const uint8_t* program, size_t size, const tr_load_options* options, tr_program** out,
              tr_error* error);
  void (*unload)(tr_runner* runner, tr_program* program);
  // Returns 0, or non-zero with *error: nodes before error->node ran, that one did not, later ones were not tried.
  int (*run)(tr_runner* runner, tr_program* program, tr_run* run, tr_error* error);
  // Returns 1 if the runner allocates this graph buffer itself (an op without a real out variant). The host must not
  // allocate it beforehand.
  int (*allocates_buffer)(const tr_program* program, uint32_t buffer);
  // Calls body(context, begin, end) for parts of [0, count), on the runner's threads if the parts have at least `grain`
  // elements. Returns when all parts are done. With it, the process needs only one thread pool. Must not be called
  // during run.
  void (*parallel_for)(tr_runner* runner, int64_t count, int64_t grain,
                       void (*body)(void* context, int64_t begin, int64_t end), void* context);
  // Returns 1 if programs may use the op of this name ("aten::add.Tensor").
  int (*has_op)(tr_runner* runner, const char* name);
  // The host is about to wait for an unknown time: threads that spin should sleep.
  void (*on_idle)(tr_runner* runner);
  // Computes the matmul with as many threads as an op of a program would have. Returns 0, or 1 if the runner cannot
  // compute it; the matrices are unchanged then. May be null, or missing in an older plugin. Must not be called during
  // run.
  int (*matmul)(tr_runner* runner, const tr_matmul* matmul);
  // The host is about to begin a run. `heavy_run`: the run's calls of parallel_for are together worth waking threads,
  // even if each is small. May be null, or missing in an older plugin.
  void (*notify_threads)(tr_runner* runner, int heavy_run);
} tr_runner_api;

typedef const tr_runner_api* (*tr_runner_entry)(void);

#ifdef __cplusplus
}
#endif
