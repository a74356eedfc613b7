#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "worker/targets/cuda/device/driver.h"

// For tests: an emulated NVIDIA driver, as a table of functions. tests/emulated_gpu/emulator executes its kernels.
//
// A stream is a queue with a thread of its own, which waits for random times between its pieces of work: what relies on
// an order that no event gives sees wrong numbers, for some seeds at least. Addresses of device memory are none of this
// CPU, so who looks there faults. Arguments are checked as the real driver does, or more strictly: handles that were
// destroyed and streams of another context are told, and the default stream is refused (it waits for all others).
//
// A module's image is LLVM's bitcode for NVPTX in LLVM's own wrapper (which says how long it is), or LLVM IR as text
// that ends with 0.
namespace torch_remote::worker::cuda::emulated {

struct Machine;

struct Options {
  int devices = 1;    // at most 6
  uint64_t seed = 1;  // of delays, of the order of threads in kernels, of the order of nodes in graphs
  std::chrono::microseconds longest{200};  // delay before some of the work
  size_t memory = size_t{8} << 30;         // bytes of a device
  bool checked = false;                    // launches are looked at access by access
  // What a device finds in memory of other processes that it opens: what is there; nothing, as it cannot be opened;
  // other bytes (as where the bus between GPUs is set up wrongly).
  enum class Others { kReadable, kRefused, kGarbled } others = Others::kReadable;
  int processors = 4;
};

// LLVM's bitcode as a module's image.
std::vector<uint8_t> make_image(const void* bitcode, size_t bytes);

// There is one at a time, for all threads of the process. Ends all that was left.
class EmulatedDriver {
 public:
  explicit EmulatedDriver(const Options& options);
  ~EmulatedDriver();
  EmulatedDriver(const EmulatedDriver&) = delete;
  EmulatedDriver& operator=(const EmulatedDriver&) = delete;

  const Driver& driver() const { return driver_; }

  // -- Faults on demand. `nth` counts from 1, from now on.

  // The nth allocation of device memory finds none; only that one.
  void fail_allocation(uint64_t nth);
  // The nth kernel that is run fails, and with it its device.
  void fail_launch(uint64_t nth);
  // The device is lost at its nth piece of work.
  void lose_device(int ordinal, uint64_t nth);
  // Streams wait so long before each piece of work (0: as the options say).
  void slow_down(std::chrono::microseconds delay);

  // -- What happened

  // What kernels did wrong, in words.
  std::vector<std::string> findings() const;
  // How often each function was called.
  std::map<std::string, uint64_t> calls() const;
  // Bytes of device memory that are allocated, of all devices.
  size_t allocated() const;
  // "1 stream, 2 events": what was made and not destroyed; empty if nothing was left.
  std::string left() const;

 private:
  std::unique_ptr<Machine> machine_;
  Driver driver_;
};

}  // namespace torch_remote::worker::cuda::emulated
