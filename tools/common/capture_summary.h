#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "remote/capture/capture.h"

// Counts the contents of a capture, in memory that does not grow with the number of runs.
namespace torch_remote::tools {

inline constexpr size_t kMaxValues = 8;  // bound on a parameter's distinct values

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
  // The values of those parameters that differ between runs, by parameter.
  std::map<uint32_t, ParamValues> changed;

  // All values of a parameter, starting with the first run's; empty without runs.
  ParamValues values(uint32_t param) const;
};

struct CaptureSummary {
  std::vector<ProgramSummary> programs;  // in the order in which the client sent them
  uint64_t runs = 0;
  uint64_t uploads = 0, uploaded_bytes = 0;
  uint64_t reads = 0, read_bytes = 0;
  uint64_t synchronizes = 0;
  uint64_t errors = 0;
};

// Reads the whole capture, from its beginning.
Status summarize(remote::CaptureReader& reader, CaptureSummary* summary);

}  // namespace torch_remote::tools
