#include "worker/session/profile.h"

#include <algorithm>
#include <string>
#include <utility>

namespace torch_remote::worker {
namespace {

// Limit of one reply. Nodes beyond it are named without their operands.
constexpr size_t kMaxLabelBytes = size_t{64} << 20;

// At most this much is lost if the worker dies.
constexpr uint64_t kHandOverAfter = 100'000'000;  // ns
constexpr size_t kHandOverEvents = size_t{1} << 14;

std::vector<ir::Sym> size_symbols(const ir::Graph& graph) {
  std::vector<ir::Sym> symbols;
  for (const ir::View& view : graph.views) symbols.insert(symbols.end(), view.sizes.begin(), view.sizes.end());
  std::ranges::sort(symbols);
  symbols.erase(std::ranges::unique(symbols).begin(), symbols.end());
  return symbols;
}

// The runner of each node alone, then of each group.
std::vector<uint32_t> runners_of(const LoadedProgram& program) {
  std::vector<uint32_t> runners = program.node_runners;
  for (const ir::Group& group : program.graph.groups) {
    const auto step = std::ranges::find(program.groups, group.first, &Step::first);
    const bool taken = step != program.groups.end() && program.group_taken[step - program.groups.begin()] != 0;
    runners.push_back(taken ? step->runner : kNoRunner);
    for (uint32_t n = group.first; taken && n <= group.last; ++n) {
      if (runners[n] == kUnknownRunner) runners[n] = step->runner;
    }
  }
  return runners;
}

}  // namespace

// Reserves all memory at once, so that recording never moves events. Pages that are not touched take no memory.
Profile::Profile(uint64_t limit) : limit_(std::min(limit, kMaxEvents)) { events_.reserve(limit_); }

void Profile::add(const wire::ProfileEvent& event) {
  if (count_ < limit_) {
    events_.push_back(event);
    ++count_;
    const bool own =
        event.program == wire::ProfileEvent::kMessage && event.node == static_cast<uint32_t>(wire::Type::kProfilePart);
    if (since_ == 0 && !own) since_ = event.end;
  } else {
    ++dropped_;
  }
}

void Profile::message(wire::Type type, uint64_t sequence, uint64_t begin, uint64_t end) {
  add({begin, end, sequence, wire::ProfileEvent::kMessage, static_cast<uint32_t>(type)});
}

uint64_t Profile::next_hand_over_in(uint64_t now) const {
  if (since_ == 0) return kNever;
  if (events_.size() >= kHandOverEvents || now - since_ >= kHandOverAfter) return 0;
  return since_ + kHandOverAfter - now;
}

void Profile::handed_over() {
  events_.clear();
  since_ = 0;
  first_variant_ = variants_.size();
}

void Profile::drop_events() {
  dropped_ += events_.size();
  events_.clear();
  since_ = 0;
}

uint64_t* Profile::times(size_t nodes) {
  times_.assign(nodes + 1, 0);
  return times_.data();
}

void Profile::ops(const LoadedProgram& program, uint32_t variant, uint64_t sequence, uint32_t first, uint32_t last) {
  const uint64_t now = monotonic_ns();
  if (count_ == limit_ || variant == kNoVariant) {
    dropped_ += last - first;
    return;
  }
  const std::vector<ir::Group>& groups = program.graph.groups;
  for (uint32_t n = first; n < last && times_[n - first] != 0; ++n) {
    const auto group = std::ranges::lower_bound(groups, n, {}, &ir::Group::first);
    const auto number = static_cast<uint32_t>(program.graph.nodes.size() + (group - groups.begin()));
    // All time of a kernel is its first node's (tr_run::times). A group of one node has the node's label.
    if (group != groups.end() && group->first == n && group->last > n && group->last < last &&
        variants_[variant].runners[number] != kNoRunner) {
      add({times_[n - first], times_[n - first + 1], sequence, variant, number});
      n = group->last;
      continue;
    }
    const uint64_t end = times_[n - first + 1];  // 0: the node failed.
    add({times_[n - first], end ? end : now, sequence, variant, n});
  }
}

uint32_t Profile::variant(const LoadedProgram& program, const std::vector<int64_t>& values) {
  auto [found, is_new] = known_.try_emplace(program.number);
  Known& known = found->second;
  if (is_new) known.symbols = size_symbols(program.graph);
  sizes_.clear();
  for (const ir::Sym symbol : known.symbols) sizes_.push_back(values[symbol]);
  if (known.last != kNoVariant && variants_[known.last].choice == program.choice &&
      variants_[known.last].sizes == sizes_) {
    return known.last;
  }
  if (count_ == limit_) return kNoVariant;
  Key key{sizes_, runners_of(program), program.accepted};
  if (const auto same = known.variants.find(key); same != known.variants.end()) {
    known.last = same->second;
    variants_[known.last].choice = program.choice;
    return known.last;
  }
  if (variants_.size() == limit_) return kNoVariant;
  known.last = static_cast<uint32_t>(variants_.size());
  variants_.push_back({program.number, sizes_, program.choice, key.runners});
  known.variants.emplace(std::move(key), known.last);
  return known.last;
}

void Profile::forget(uint32_t program) {
  known_.erase(program);
  for (Variant& variant : variants_) {
    if (variant.program == program) variant.program = 0;
  }
}

flatbuffers::Offset<flatbuffers::Vector<flatbuffers::Offset<wire::ProfileProgram>>> Profile::encode_programs(
    flatbuffers::FlatBufferBuilder& builder, const Find& find, const Runners& runners) const {
  std::vector<flatbuffers::Offset<wire::ProfileProgram>> programs;
  std::vector<int64_t> values;
  for (const Variant& variant : std::span(variants_).subspan(first_variant_)) {
    std::vector<flatbuffers::Offset<flatbuffers::String>> labels, names, declined;
    std::vector<uint32_t> record_indices;
    for (const uint32_t runner : variant.runners) {
      names.push_back(builder.CreateSharedString(runner < runners.size() ? runners[runner]->name() : ""));
    }
    if (const LoadedProgram* program = find(variant.program)) {
      const std::vector<ir::Sym>& symbols = known_.at(variant.program).symbols;
      values.assign(program->graph.symbols(), 0);
      for (size_t i = 0; i < symbols.size(); ++i) values[symbols[i]] = variant.sizes[i];
      for (uint32_t n = 0; n < program->graph.nodes.size(); ++n) {
        const ir::Node& node = program->graph.nodes[n];
        // The reasons for an earlier choice of runners are not known any more.
        const bool known = program->choice == variant.choice && builder.GetSize() < kMaxLabelBytes;
        declined.push_back(builder.CreateSharedString(known ? reasons(*program, runners, n) : ""));
        labels.push_back(builder.CreateSharedString(builder.GetSize() < kMaxLabelBytes
                                                        ? describe_node(program->graph, node, values)
                                                        : std::string(ir::op_desc(node.opcode).name)));
        record_indices.push_back(node.record);
      }
      for (const ir::Group& group : program->graph.groups) {
        std::string label = "kernel: ";
        for (uint32_t n = group.first; n <= group.last && builder.GetSize() < kMaxLabelBytes; ++n) {
          label += (n > group.first ? "; " : "") + describe_node(program->graph, program->graph.nodes[n], values);
        }
        labels.push_back(builder.CreateSharedString(label));
        record_indices.push_back(program->graph.nodes[group.first].record);
        declined.push_back(builder.CreateSharedString(""));
      }
    }
    names.resize(labels.size());
    const auto label_vector = builder.CreateVector(labels);
    const auto record_index_vector = builder.CreateVector(record_indices);
    const auto name_vector = builder.CreateVector(names);
    const auto declined_vector = builder.CreateVector(declined);
    programs.push_back(wire::CreateProfileProgram(builder, variant.program, label_vector, record_index_vector,
                                                  name_vector, declined_vector));
  }
  return builder.CreateVector(programs);
}

}  // namespace torch_remote::worker
