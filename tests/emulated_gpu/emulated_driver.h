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
// A stream is a queue with its own thread, which sleeps for random times between work items. Code that relies on an
// order without an event gets wrong numbers for at least some seeds. Device addresses are not valid on the host, so
// host code that dereferences one faults. Arguments are checked at least as strictly as in the real driver. Destroyed
// handles and streams of another context are errors. The default stream is refused, because it waits for all others.
//
// A module's image is LLVM bitcode for NVPTX in LLVM's bitcode wrapper (which states its length), or null-terminated
// LLVM IR text. It may follow the header of a machine code file or of a PTX file (image_rules.h). Then the driver
// checks the header and returns the errors that a real driver of its version returns.
namespace torch_remote::worker::cuda::emulated {

struct Machine;

struct Options {
  int devices = 1;    // at most 6
  uint64_t seed = 1;  // selects delays, the order of threads in kernels, and the order of nodes in graphs
  std::chrono::microseconds max_delay{200};  // upper limit of the delay before some work items
  size_t memory = size_t{8} << 30;           // bytes per device
  bool checked = false;                      // examines each memory access of each launch
  // Determines what a device finds when it opens memory of another process. kReadable: it finds the right bytes.
  // kRefused: it cannot open the memory. kGarbled: it finds other bytes, as with a wrongly configured bus between GPUs.
  enum class PeerAccess { kReadable, kRefused, kGarbled } peer_access = PeerAccess::kReadable;
  int processors = 4;
  int driver = kDriverVersion;  // its version: 12040 is CUDA 12.4
  uint32_t sm = 90;             // compute capability of the devices
  bool memory_pools = true;     // false: as on some virtual GPUs
  ComputeMode compute_mode = ComputeMode::kDefault;
  bool used_elsewhere = false;  // another process has a context on each device
};

// Wraps LLVM bitcode as a module image.
std::vector<uint8_t> make_image(const void* bitcode, size_t bytes);

// At most one exists at a time; all threads of the process share it. The destructor releases everything that is left.
class EmulatedDriver {
 public:
  explicit EmulatedDriver(const Options& options);
  ~EmulatedDriver();
  EmulatedDriver(const EmulatedDriver&) = delete;
  EmulatedDriver& operator=(const EmulatedDriver&) = delete;

  const Driver& driver() const { return driver_; }

  // -- Faults on demand. `nth` counts from 1, from the call on.

  // The nth allocation of device memory fails; later ones succeed.
  void fail_allocation(uint64_t nth);
  // The nth kernel launch fails, and with it its device.
  void fail_launch(uint64_t nth);
  // The device is lost at its nth work item.
  void lose_device(int ordinal, uint64_t nth);
  // Streams sleep this long before each work item (0: as the options say).
  void slow_down(std::chrono::microseconds delay);

  // -- What happened

  // Errors of kernels, as text.
  std::vector<std::string> findings() const;
  // The number of calls of each function.
  std::map<std::string, uint64_t> calls() const;
  // Bytes of allocated device memory, over all devices.
  size_t allocated() const;
  // Objects that were created and not destroyed, as "1 stream, 2 events"; empty if none are left.
  std::string leaks() const;

 private:
  std::unique_ptr<Machine> machine_;
  Driver driver_;
};

}  // namespace torch_remote::worker::cuda::emulated
