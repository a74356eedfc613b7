#pragma once

#include <chrono>
#include <string>

#include "worker/targets/cuda/dnn/cudnn.h"

// For tests: cuDNN in software, as a table of functions. Convolutions are computed by plain loops on the memory of the
// emulated driver (emulated_driver.h), in the order of the stream. Descriptors are checked as the real library does, or
// more strictly: what must be set, with which type, before what; sizes, layouts, types that fit; ids, addresses, their
// alignment; what a result overlaps; that what a plan was made of is there.
namespace torch_remote::worker::cuda::emulated {

// There is an EmulatedDriver while its functions are called. Calls are counted there: `EmulatedDriver::calls`.
dnn::Table cudnn();

// Engines, in the order in which they are proposed.
enum class Engine : int {
  kLowPrecision,  // of f32: in tf32
  kUnordered,     // of gradients of filters: says that its sums are not the same each time
  kBroken,        // no plan can be made of it
  kWorkspace,     // wants memory; not of f64
  kPlain,         // what is proposed as a fallback
};
// How much longer an engine takes, from now on.
void slow_down(Engine engine, std::chrono::microseconds delay);
// Whether an engine is not proposed, from now on.
void leave_out(Engine engine, bool out);
// How often an engine has computed something, of this process.
uint64_t runs_of(Engine engine);

// "1 handle, 2 descriptors": what was made and not destroyed.
std::string cudnn_left();

}  // namespace torch_remote::worker::cuda::emulated
