#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "remote/capture/capture.h"

// What a capture holds, counted; in memory that does not grow with its runs.
namespace torch_remote::tools {

inline constexpr size_t kMaxValues = 8;  // of a parameter that are told apart

// The values of one parameter over the runs of a program.
struct ParamValues {
  std::vector<std::pair<int64_t, uint64_t>> counts;  // value, in how many runs; in the order of their first runs
  uint64_t others = 0;                               // runs with values beyond the first kMaxValues
};

struct ProgramSummary {
  remote::CapturedProgramPtr program;
  uint64_t runs = 0;
  uint64_t errors = 0;         // that the worker reported about it
  std::vector<int64_t> first;  // parameters of the first run
  // Of the parameters that had another value in another run: these values.
  std::map<uint32_t, ParamValues> changed;

  // All values of a parameter, the first run's first; none without runs.
  ParamValues values(uint32_t param) const;
};

struct CaptureSummary {
  std::vector<ProgramSummary> programs;  // in the order in which they were sent
  uint64_t runs = 0;
  uint64_t uploads = 0, uploaded_bytes = 0;
  uint64_t reads = 0, read_bytes = 0;
  uint64_t synchronizes = 0;
  uint64_t errors = 0;
};

// Goes through the whole capture, from its beginning.
Status summarize(remote::CaptureReader& reader, CaptureSummary* summary);

}  // namespace torch_remote::tools
