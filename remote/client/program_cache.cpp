#include "remote/client/program_cache.h"

#include <algorithm>
#include <cstring>

#include "ir/graph.h"
#include "ir/ops/op_table_generated.h"

namespace torch_remote::remote {
namespace {

template <class T>
bool same(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

}  // namespace

ProgramFacts analyze_buffers(const ir::Graph& graph) {
  constexpr size_t kMostCopies = 8;
  constexpr ir::Opcode copy = ir::ops::aten_copy_;
  const size_t count = graph.buffers.size();
  // Index of each buffer among the inputs or among the fresh buffers that survive, and its number of writes.
  std::vector<uint32_t> input(count), made(count), writes(count);
  uint32_t inputs = 0, survivors = 0;
  for (size_t b = 0; b < count; ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kInput) {
      input[b] = inputs++;
    } else if (graph.buffers[b].survives) {
      made[b] = survivors++;
    }
  }
  for (const ir::Node& node : graph.nodes) {
    ir::for_each_view(node, [&](uint32_t view, bool written) { writes[graph.views[view].buffer] += written; });
  }
  ProgramFacts facts;
  facts.written.resize(inputs);
  for (size_t b = 0; b < count; ++b) {
    if (graph.buffers[b].kind == ir::BufferKind::kInput) facts.written[input[b]] = writes[b] > 0;
  }
  for (const ir::Node& node : graph.nodes) {
    if (node.opcode != copy || facts.copies.size() == kMostCopies) continue;
    const ir::Arg &to = node.args[0], &from = node.args[1];
    if (to.tag != ir::ArgTag::kView || from.tag != ir::ArgTag::kView) continue;
    const uint32_t target = graph.views[to.a].buffer, source = graph.views[from.a].buffer;
    const bool plain = graph.views[to.a].dtype == graph.views[from.a].dtype && graph.buffers[target].survives &&
                       graph.buffers[target].kind == ir::BufferKind::kFresh &&
                       graph.buffers[source].kind == ir::BufferKind::kInput;
    if (plain && writes[target] == 1 && writes[source] == 0) {
      facts.copies.push_back({input[source], made[target], static_cast<uint32_t>(from.a), static_cast<uint32_t>(to.a)});
    }
  }
  return facts;
}

ProgramPtr ProgramCache::find(const ir::Hash128& key, const ir::Trace& trace,
                              std::span<const uint64_t> survivors) const {
  const auto [begin, end] = by_key_.equal_range(key.lo);
  for (auto i = begin; i != end; ++i) {
    const CachedProgram& program = *i->second;
    if (program.key == key && program.options.deterministic == trace.deterministic &&
        same<uint64_t>(program.survivors, survivors) && same<uint32_t>(program.code, trace.code)) {
      return i->second;
    }
  }
  return nullptr;
}

ProgramPtr ProgramCache::add(const ir::Hash128& key, const ir::Trace& trace, std::span<const uint64_t> survivors) {
  auto program = std::make_shared<CachedProgram>();
  program->key = key;
  program->options.deterministic = trace.deterministic;
  program->code = trace.code;
  program->survivors.assign(survivors.begin(), survivors.end());
  program->ops.reserve(trace.records.size());
  for (const ir::TraceRecord& record : trace.records) program->ops.push_back(trace.code[record.code]);
  program->sources = trace.sources;
  by_key_.emplace(key.lo, program);
  number(program);
  return program;
}

ProgramPtr ProgramCache::add(const ir::Graph& graph, std::vector<ir::SourceRef> sources,
                             const ProgramOptions& options) {
  auto program = std::make_shared<CachedProgram>();
  program->of_graph = true;
  program->options = options;
  program->sources = std::move(sources);
  program->ops.assign(program->sources.size(), ir::kInvalidOpcode);
  for (const ir::Node& node : graph.nodes) {
    if (node.record < program->ops.size()) program->ops[node.record] = node.opcode;
  }
  number(program);
  return program;
}

void ProgramCache::number(const ProgramPtr& program) {
  std::lock_guard lock(mutex_);
  program->number = ++last_number_;
  by_number_.emplace(program->number, program);
}

void ProgramCache::remove(const ProgramPtr& program) {
  std::lock_guard lock(mutex_);
  drop(program);
}

// Requires mutex_.
void ProgramCache::drop(const ProgramPtr& program) {
  constexpr size_t kDescribed = 256;
  const auto [begin, end] = by_key_.equal_range(program->key.lo);
  for (auto i = begin; i != end; ++i) {
    if (i->second != program) continue;
    by_key_.erase(i);
    break;
  }
  program->code = {};
  program->survivors = {};
  program->last = {};
  dropped_.push_back(program);
  if (dropped_.size() > kDescribed) dropped_.pop_front();
  by_number_.erase(program->number);
}

void ProgramCache::trim(uint64_t most, std::vector<uint32_t>* dropped) {
  std::lock_guard lock(mutex_);
  uint64_t taken = 0;
  std::vector<ProgramPtr> old;
  for (const auto& [number, program] : by_number_) {
    if (program->of_graph && program.use_count() == 1) {
      old.push_back(program);
    } else {
      taken += program->worker_bytes.load(std::memory_order_relaxed);
    }
  }
  if (taken > most) {
    std::vector<ProgramPtr> traces;
    for (const auto& [number, program] : by_number_) {
      if (!program->of_graph) traces.push_back(program);
    }
    std::ranges::sort(traces, {}, [](const ProgramPtr& program) { return program->last_use; });
    for (const ProgramPtr& program : traces) {
      if (taken <= most - most / 8) break;
      taken -= std::min(taken, program->worker_bytes.load(std::memory_order_relaxed));
      old.push_back(program);
    }
  }
  for (const ProgramPtr& program : old) {
    dropped->push_back(program->number);
    drop(program);
  }
}

size_t ProgramCache::size() const {
  std::lock_guard lock(mutex_);
  return by_number_.size();
}

// Requires mutex_.
const CachedProgram* ProgramCache::numbered(uint32_t number) const {
  if (const auto found = by_number_.find(number); found != by_number_.end()) return found->second.get();
  const auto found = std::ranges::find(dropped_, number, [](const ProgramPtr& program) { return program->number; });
  return found == dropped_.end() ? nullptr : found->get();
}

size_t ProgramCache::first_difference(const ir::Trace& trace) const {
  if (by_key_.empty()) return SIZE_MAX;
  size_t longest = 0;  // length of the longest common prefix, in words
  for (const auto& [key, program] : by_key_) {
    const auto& code = program->code;
    const size_t n = std::min(code.size(), trace.code.size());
    const size_t agree = static_cast<size_t>(
        std::mismatch(code.begin(), code.begin() + static_cast<ptrdiff_t>(n), trace.code.begin()).first - code.begin());
    longest = std::max(longest, agree);
  }
  if (longest == trace.code.size()) return trace.records.size();
  const auto after = std::upper_bound(trace.records.begin(), trace.records.end(), longest,
                                      [](size_t word, const ir::TraceRecord& record) { return word < record.code; });
  return static_cast<size_t>(after - trace.records.begin()) - 1;
}

void ProgramCache::set_sources(CachedProgram& program, uint64_t sequence, std::vector<ir::SourceRef>& sources) {
  constexpr size_t kMost = 256;
  std::lock_guard lock(mutex_);
  if (same<ir::SourceRef>(program.sources, sources)) return;
  std::vector<ir::SourceRef> spare;
  if (earlier_.size() == kMost) {
    spare = std::move(earlier_.front().sources);
    earlier_.pop_front();
  }
  spare.swap(sources);
  spare.swap(program.sources);
  earlier_.push_back({program.number, std::exchange(program.sources_since, sequence), sequence, std::move(spare)});
}

bool ProgramCache::describe(uint32_t program, uint32_t record, uint64_t sequence, ir::SourceRef* source,
                            std::string* op) const {
  std::lock_guard lock(mutex_);
  const CachedProgram* const known = numbered(program);
  if (known == nullptr) return false;
  const CachedProgram& found = *known;
  if (record >= found.ops.size() || found.ops[record] == ir::kInvalidOpcode) return false;
  const std::vector<ir::SourceRef>* sources = sequence >= found.sources_since ? &found.sources : nullptr;
  for (auto old = earlier_.rbegin(); sources == nullptr && old != earlier_.rend(); ++old) {
    if (old->program == program && old->since <= sequence && sequence < old->until) sources = &old->sources;
  }
  if (sources != nullptr && record < sources->size()) *source = (*sources)[record];
  *op = ir::op_desc(found.ops[record]).name;
  return true;
}

}  // namespace torch_remote::remote
