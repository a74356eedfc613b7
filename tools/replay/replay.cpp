#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/replay/modes.h"
#include "tools/runs/case.h"
#include "tools/runs/replayer.h"

namespace torch_remote::tools::replay {
namespace {

using Clock = std::chrono::steady_clock;

// A capture has only the size of a read's elements, not their dtype. Floating-point types are the likeliest.
ir::DType likely_dtype(uint32_t item_size, bool exact) {
  if (!exact && item_size == 4) return ir::DType::kFloat32;
  if (!exact && item_size == 8) return ir::DType::kFloat64;
  switch (item_size) {
    case 2:
      return ir::DType::kUInt16;
    case 4:
      return ir::DType::kUInt32;
    case 8:
      return ir::DType::kUInt64;
    case 16:
      return ir::DType::kComplex128;
    default:
      return ir::DType::kUInt8;
  }
}

const char* ending(remote::CaptureEnding ending) {
  switch (ending) {
    case remote::CaptureEnding::kComplete:
      return "complete";
    case remote::CaptureEnding::kLimit:
      return "ends at its limit";
    case remote::CaptureEnding::kCutOff:
      return "cut off";
  }
  return "";
}

}  // namespace

Status replay(remote::CaptureReader& capture, Device& device, const Options& options, bool* good) {
  Replayer replayer(device);
  const bool exact = options.tolerance.rtol == 0 && options.tolerance.atol == 0;
  std::vector<std::string> differences;
  uint64_t compared = 0;
  const Clock::time_point begin = Clock::now();
  for (;;) {
    std::optional<remote::CaptureEvent> event;
    if (Status status = capture.next(&event); !status) return status;
    if (!event) break;
    const auto* read = std::get_if<remote::ReadEvent>(&event->what);
    const bool compare = options.compare == Compare::kRecorded && read && read->has_reply && !read->error;
    Bytes answer;
    if (Status status = replayer.perform(*event, compare ? &answer : nullptr); !status) return status;
    if (!compare || replayer.failed()) continue;
    ++compared;
    const auto difference = ir::compare(likely_dtype(read->item_size, exact), read->bytes, answer, options.tolerance);
    if (difference) {
      differences.push_back("read " + std::to_string(compared) + " (message " + std::to_string(event->sequence) +
                            ", buffer " + std::to_string(read->buffer) +
                            "): recorded and replayed: " + to_string(*difference));
    }
  }
  if (Status status = replayer.finish(); !status) return status;
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  *good = differences.empty() && replayer.new_errors().empty();
  const ReplayCounts& counts = replayer.counts();
  if (options.json) {
    nlohmann::ordered_json json = {{"ending", ending(capture.ending())},
                                   {"programs", counts.programs},
                                   {"runs", counts.runs},
                                   {"runs_left_out", counts.left_out},
                                   {"ops", counts.ops},
                                   {"uploads", counts.uploads},
                                   {"bytes_uploaded", counts.bytes_uploaded},
                                   {"reads", counts.reads},
                                   {"bytes_read", counts.bytes_read},
                                   {"seconds", seconds},
                                   {"errors", replayer.new_errors()}};
    if (options.compare == Compare::kRecorded) {
      json["compared"] = compared;
      json["differences"] = differences;
    }
    std::printf("%s\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    return {};
  }
  for (const std::string& error : replayer.new_errors())
    std::printf("error that the capture does not have: %s\n", error.c_str());
  for (const std::string& difference : differences) std::printf("%s\n", difference.c_str());
  std::printf("capture    %s, of process %u, torch %s\n", ending(capture.ending()), capture.info().process,
              capture.info().torch_version.empty() ? "?" : capture.info().torch_version.c_str());
  std::printf("worker     %s\n", device.description().c_str());
  std::printf("programs   %llu\nruns       %llu, %llu ops\n", static_cast<unsigned long long>(counts.programs),
              static_cast<unsigned long long>(counts.runs), static_cast<unsigned long long>(counts.ops));
  if (counts.left_out > 0) {
    std::printf("left out   %llu runs: an input of theirs is not in the capture\n",
                static_cast<unsigned long long>(counts.left_out));
  }
  std::printf("uploads    %llu, %llu bytes\nreads      %llu, %llu bytes\n",
              static_cast<unsigned long long>(counts.uploads), static_cast<unsigned long long>(counts.bytes_uploaded),
              static_cast<unsigned long long>(counts.reads), static_cast<unsigned long long>(counts.bytes_read));
  std::printf("time       %.3f s\n", seconds);
  if (options.compare == Compare::kRecorded) {
    std::printf("compared   %llu reads, %zu differ\n", static_cast<unsigned long long>(compared), differences.size());
  }
  return {};
}

Status extract(remote::CaptureReader& capture, Device& device, const Options& options) {
  Replayer replayer(device);
  uint64_t runs = 0;
  for (;;) {
    std::optional<remote::CaptureEvent> event;
    if (Status status = capture.next(&event); !status) return status;
    if (!event) {
      return Status::invalid("the capture has " + std::to_string(runs) + " runs, none with number " +
                             std::to_string(options.run));
    }
    const auto* run = std::get_if<remote::RunEvent>(&event->what);
    if (run && ++runs == options.run) {
      RunCase found;
      if (Status status = replayer.extract(*run, &found); !status) return status;
      return save_case(found, options.output);
    }
    if (Status status = replayer.perform(*event); !status) return status;
  }
}

}  // namespace torch_remote::tools::replay
