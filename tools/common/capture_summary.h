#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "remote/capture/capture.h"

// Counts the contents of a capture, in memory that does not grow with the number of runs.
namespace torch_remote::tools {

// The number of different values of a parameter that are counted one by one. The first run's value is one of them.
inline constexpr size_t kMaxValues = 8;

// The values of one parameter in the runs of a program.
struct ParamValues {
  std::vector<std::pair<int64_t, uint64_t>> counts;  // (value, number of runs), in the order of first use
  uint64_t others = 0;                               // number of runs with values beyond the first kMaxValues
};

struct ProgramSummary {
  remote::CapturedProgramPtr program;
  uint64_t runs = 0;
  uint64_t errors = 0;         // errors that the worker reported about the program
  std::vector<int64_t> first;  // the first run's parameters
  // By parameter, for those that differ between runs: the values other than the first run's. Use values() for all.
  std::map<uint32_t, ParamValues> changed;

  // All values of a parameter, starting with the first run's. Empty without runs, or if there is no such parameter.
  ParamValues values(uint32_t param) const;
};

struct CaptureSummary {
  // In the order in which the client sent them. A number that the client used again has several entries.
  std::vector<ProgramSummary> programs;
  uint64_t runs = 0;
  uint64_t uploads = 0, uploaded_bytes = 0;
  uint64_t reads = 0, read_bytes = 0;
  uint64_t synchronizes = 0;
  uint64_t errors = 0;
};

// Reads the whole capture, from its beginning. After an error, *summary has the counts up to the damaged part.
Status summarize(remote::CaptureReader& reader, CaptureSummary* summary);

}  // namespace torch_remote::tools
