#include "tools/reduce/reducer.h"

#include <algorithm>

#include "tools/reduce/operands.h"
#include "tools/reduce/resize.h"
#include "tools/reduce/subset.h"

namespace torch_remote::tools::reduce {
namespace {

uint64_t input_bytes(const RunCase& run) {
  uint64_t total = 0;
  for (const Bytes& bytes : run.inputs) total += bytes.size();
  return total;
}

}  // namespace

Status Reducer::interesting(const RunCase& run, bool* yes) {
  *yes = false;
  if (!is_sound(run)) return {};
  ++tests_;
  return test_.interesting(run, yes);
}

Status Reducer::attempt(const char* step, RunCase candidate, bool* taken) {
  if (Status status = interesting(candidate, taken); !status || !*taken) return status;
  run_ = std::move(candidate);
  progress_({step, run_.graph.nodes.size(), input_bytes(run_), tests_});
  return {};
}

Status Reducer::attempt_nodes(const char* step, const std::vector<bool>& keep, bool* taken) {
  *taken = false;
  Device* device = nullptr;
  if (Status status = reference_.get(&device); !status) return status;
  RunCase part;
  Status status = subset(*device, run_, keep, &part);
  if (reference_.lost(status) || status.code() == ErrorCode::kInvalid) return {};
  if (!status) return status;
  return attempt(step, std::move(part), taken);
}

Status Reducer::reduce(RunCase* run) {
  run_ = compacted(*run);
  bool yes;
  if (Status status = interesting(run_, &yes); !status) return status;
  if (!yes) return Status::invalid("the run does not fail");
  progress_({"start", run_.graph.nodes.size(), input_bytes(run_), tests_});
  size_t ops, survivors;
  uint64_t bytes;
  do {
    ops = run_.graph.nodes.size();
    bytes = input_bytes(run_);
    survivors = surviving_buffers(run_.graph).size();
    if (Status status = drop_nodes(); !status) return status;
    if (Status status = drop_survivors(); !status) return status;
    if (Status status = drop_operands(); !status) return status;
    if (Status status = shrink_sizes(); !status) return status;
  } while (run_.graph.nodes.size() < ops || input_bytes(run_) < bytes ||
           surviving_buffers(run_.graph).size() < survivors);
  // The last tested run may have been a rejected candidate.
  if (Status status = interesting(run_, &yes); !status) return status;
  *run = run_;
  return {};
}

// Splits the ops into halves, quarters, ...; keeps only one part, or drops one part.
Status Reducer::drop_nodes() {
  bool taken;
  const std::vector<bool> needed = needed_nodes(run_.graph);
  if (std::ranges::find(needed, false) != needed.end()) {
    if (Status status = attempt_nodes("ops that nothing needs", needed, &taken); !status) return status;
  }
  for (size_t parts = 2; run_.graph.nodes.size() > 1;) {
    const size_t count = run_.graph.nodes.size();
    parts = std::min(parts, count);
    bool any = false;
    for (const bool alone : {true, false}) {
      if (parts == 2 && !alone) break;  // the same as keeping only the other part
      for (size_t part = 0; part < parts && !any; ++part) {
        std::vector<bool> keep(count, !alone);
        for (size_t n = part * count / parts; n < (part + 1) * count / parts; ++n) keep[n] = alone;
        if (Status status = attempt_nodes(alone ? "ops of a range" : "ops but a range", keep, &any); !status) {
          return status;
        }
        if (any) parts = alone ? 2 : std::max<size_t>(parts - 1, 2);
      }
    }
    if (any) continue;
    if (parts == count) return {};
    parts *= 2;
  }
  return {};
}

Status Reducer::drop_survivors() {
  std::vector<uint32_t> surviving;
  for (uint32_t b = 0; b < run_.graph.buffers.size(); ++b) {
    if (run_.graph.buffers[b].survives) surviving.push_back(b);
  }
  for (size_t length = surviving.size(); length > 0; length /= 2) {
    for (size_t begin = 0; begin < surviving.size();) {
      const size_t end = std::min(begin + length, surviving.size());
      RunCase candidate = run_;
      for (size_t i = begin; i < end; ++i) candidate.graph.buffers[surviving[i]].survives = false;
      bool taken;
      if (Status status = attempt("results", std::move(candidate), &taken); !status) return status;
      if (taken) {
        surviving.erase(surviving.begin() + static_cast<ptrdiff_t>(begin),
                        surviving.begin() + static_cast<ptrdiff_t>(end));
      } else {
        begin = end;
      }
    }
  }
  bool taken;
  return attempt_nodes("ops that nothing needs", needed_nodes(run_.graph), &taken);
}

Status Reducer::drop_operands() {
  for (uint32_t n = 0; n < run_.graph.nodes.size(); ++n) {
    size_t length = list_length(run_.graph, run_.graph.nodes[n]);
    for (size_t piece = (length + 1) / 2; length > 1 && piece > 0; piece /= 2) {
      for (size_t begin = 0; begin < length && length > 1;) {
        const size_t end = std::min(begin + piece, length);
        bool taken = false;
        if (RunCase candidate; end - begin < length && without_operands(run_, n, begin, end, &candidate)) {
          if (Status status = attempt("operands", compacted(candidate), &taken); !status) return status;
        }
        if (taken) {
          length -= end - begin;
        } else {
          begin = end;
        }
      }
    }
  }
  return {};
}

Status Reducer::shrink_sizes() {
  for (const int64_t size : sizes_of(run_)) {
    bool taken = false;
    for (const int64_t smaller : {int64_t{2}, int64_t{3}, int64_t{4}, int64_t{8}, size / 4, size / 2}) {
      if (smaller < 2 || smaller >= size || taken) continue;
      RunCase candidate;
      if (!with_size(run_, size, smaller, &candidate)) continue;
      if (Status status = attempt("sizes", std::move(candidate), &taken); !status) return status;
    }
  }
  return {};
}

}  // namespace torch_remote::tools::reduce
