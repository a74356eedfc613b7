#include "tools/common/capture_summary.h"

#include <algorithm>
#include <optional>
#include <variant>

namespace torch_remote::tools {
namespace {

void count(ParamValues& values, int64_t value) {
  const auto found = std::ranges::find(values.counts, value, &std::pair<int64_t, uint64_t>::first);
  if (found != values.counts.end()) {
    ++found->second;
  } else if (values.counts.size() + 1 < kMaxValues) {
    values.counts.emplace_back(value, 1);
  } else {
    ++values.others;
  }
}

class Counter {
 public:
  explicit Counter(CaptureSummary& summary) : summary_(summary) {}

  void operator()(const remote::ProgramEvent& event) {
    places_[event.program->number] = summary_.programs.size();
    summary_.programs.push_back({.program = event.program, .first = {}, .changed = {}});
  }
  void operator()(const remote::RunEvent& event) {
    ++summary_.runs;
    ProgramSummary& program = summary_.programs[places_.at(event.program->number)];
    ++program.runs;
    if (program.runs == 1) program.first = event.params;
    for (uint32_t i = 0; i < event.params.size(); ++i) {
      if (event.params[i] != program.first[i]) count(program.changed[i], event.params[i]);
    }
    note(event.error);
  }
  void operator()(const remote::UploadEvent& event) {
    ++summary_.uploads;
    summary_.uploaded_bytes += event.bytes.size();
  }
  void operator()(const remote::ReadEvent& event) {
    ++summary_.reads;
    summary_.read_bytes += event.bytes.size();
    note(event.error);
  }
  void operator()(const remote::FreeEvent&) {}
  void operator()(const remote::SynchronizeEvent& event) {
    ++summary_.synchronizes;
    note(event.error);
  }
  void operator()(const remote::ErrorEvent& event) { note(event.error); }

 private:
  void note(const std::optional<remote::CapturedError>& error) {
    if (!error.has_value()) return;
    ++summary_.errors;
    if (const auto place = places_.find(error->program); place != places_.end()) {
      ++summary_.programs[place->second].errors;
    }
  }

  CaptureSummary& summary_;
  std::map<uint32_t, size_t> places_;  // program number to index in summary_.programs
};

}  // namespace

Status summarize(remote::CaptureReader& reader, CaptureSummary* summary) {
  *summary = {};
  reader.rewind();
  Counter counter(*summary);
  for (std::optional<remote::CaptureEvent> event;;) {
    if (Status status = reader.next(&event); !status.ok()) return status;
    if (!event.has_value()) return {};
    std::visit(counter, event->what);
  }
}

ParamValues ProgramSummary::values(uint32_t param) const {
  ParamValues all;
  if (param >= first.size()) return all;
  all.counts.emplace_back(first[param], runs);
  const auto found = changed.find(param);
  if (found == changed.end()) return all;
  all.others = found->second.others;
  uint64_t other_runs = all.others;
  for (const auto& value : found->second.counts) {
    all.counts.push_back(value);
    other_runs += value.second;
  }
  all.counts[0].second -= other_runs;
  return all;
}

}  // namespace torch_remote::tools
