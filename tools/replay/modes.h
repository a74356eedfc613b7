#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/checking/compare.h"
#include "passes/pass.h"
#include "remote/capture/capture.h"
#include "tools/runs/device.h"

// The modes of remote-replay. Each mode prints its findings on the standard output.
namespace torch_remote::tools::replay {

enum class Compare : uint8_t { kNothing, kRecorded, kPasses, kWorker };

struct Options {
  std::string input;
  std::string worker = "local", other;
  int threads = 0;
  Compare compare = Compare::kNothing;
  bool rebuild = false;  // kPasses: runs this tool's passes on the recorded graph, instead of using the sent graph
  ir::Tolerance tolerance;
  uint64_t memory = uint64_t{1} << 30;  // bound on the bytes of intermediate results at a time
  uint64_t run = 0;                     // only this run, counted from 1; 0: all
  bool bench = false;
  int rounds = 50;
  std::string output;  // the file for --extract
  bool json = false;
  std::span<const passes::Pass> passes;
};

// Returns an error status if the capture or the worker is unusable. Otherwise sets *good if the mode found no problem.
Status replay(remote::CaptureReader& capture, Device& device, const Options& options, bool* good);
// For kPasses and kWorker. `other` is the second worker, or `device` itself.
Status compare_runs(remote::CaptureReader& capture, Device& device, Device& other, const Options& options, bool* good);
Status bench(remote::CaptureReader& capture, Device& device, const Options& options);
Status extract(remote::CaptureReader& capture, Device& device, const Options& options);

}  // namespace torch_remote::tools::replay
