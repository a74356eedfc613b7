#include "ir/testing/random_graph.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "ir/analysis.h"
#include "ir/number_kinds.h"

namespace torch_remote::ir::testing {
namespace {

uint32_t below(Rng& rng, uint32_t n) { return static_cast<uint32_t>(rng() % n); }
bool chance(Rng& rng, uint32_t percent) { return below(rng, 100) < percent; }

template <typename T>
const T& pick(Rng& rng, const std::vector<T>& list) {
  return list[below(rng, static_cast<uint32_t>(list.size()))];
}

const std::vector<DType>& dtypes() {
  static const std::vector<DType> all = [] {
    std::vector<DType> list;
    for (uint32_t i = 0; i < 256; ++i) {
      if (is_valid(static_cast<DType>(i))) list.push_back(static_cast<DType>(i));
    }
    return list;
  }();
  return all;
}

int64_t random_word(Rng& rng) {
  switch (below(rng, 6)) {
    case 0:
      return static_cast<int64_t>(below(rng, 4));
    case 1:
      return -static_cast<int64_t>(below(rng, 100));
    case 2:
      return static_cast<int64_t>(rng());
    case 3:
      return std::bit_cast<int64_t>(static_cast<double>(below(rng, 2000)) / 64 - 10);
    case 4:
      return std::bit_cast<int64_t>(chance(rng, 50) ? std::numeric_limits<double>::infinity() : std::nan("1"));
    default:
      return static_cast<int64_t>(below(rng, 100000));
  }
}

std::string random_text(Rng& rng) {
  std::string text;
  for (uint32_t n = below(rng, 12); n > 0; --n) {
    text += chance(rng, 80) ? static_cast<char>('a' + below(rng, 26)) : static_cast<char>(below(rng, 256));
  }
  return text;
}

// The ops that a random graph may have. Opaque ops are repeated, so that they are frequent.
const std::vector<Opcode>& all_ops() {
  static const std::vector<Opcode> ops = [] {
    std::vector<Opcode> list;
    for (const OpDesc& desc : op_table()) list.push_back(desc.opcode);
    for (uint32_t i = 0; i < 40; ++i) list.insert(list.end(), opaque_ops().begin(), opaque_ops().end());
    return list;
  }();
  return ops;
}

ArgKind element_kind(ArgKind kind) {
  switch (kind) {
    case ArgKind::kOptionalInt:
    case ArgKind::kIntList:
    case ArgKind::kOptionalIntList:
      return ArgKind::kInt;
    case ArgKind::kOptionalFloat:
    case ArgKind::kFloatList:
    case ArgKind::kOptionalFloatList:
      return ArgKind::kFloat;
    case ArgKind::kOptionalBool:
    case ArgKind::kBoolList:
      return ArgKind::kBool;
    case ArgKind::kOptionalScalar:
    case ArgKind::kScalarList:
      return ArgKind::kScalar;
    default:
      return kind;
  }
}

bool is_optional(ArgKind kind) {
  switch (kind) {
    case ArgKind::kOptionalInt:
    case ArgKind::kOptionalFloat:
    case ArgKind::kOptionalBool:
    case ArgKind::kOptionalScalar:
    case ArgKind::kOptionalIntList:
    case ArgKind::kOptionalFloatList:
    case ArgKind::kOptionalString:
      return true;
    default:
      return false;
  }
}

// -- graphs ----------------------------------------------------------------------------------------------------------

class GraphMaker {
 public:
  GraphMaker(Rng& rng, const RandomGraphOptions& options) : rng_(rng), options_(options) {}

  Graph make() {
    symbols();
    for (uint32_t n = below(rng_, 5); n > 0; --n) {
      touchable_.push_back(add_buffer(BufferKind::kInput));
    }
    const uint32_t nodes = below(rng_, options_.max_nodes + 1);
    for (uint32_t i = 0; i < nodes; ++i) node(options_.dynamic && i + 1 == nodes && chance(rng_, 30));
    while (chance(rng_, 30)) add_buffer(chance(rng_, 50) ? BufferKind::kInput : BufferKind::kFresh);
    while (!graph_.buffers.empty() && chance(rng_, 30)) {
      const uint32_t buffer = below(rng_, static_cast<uint32_t>(graph_.buffers.size()));
      if (!dynamic_buffers_.empty() && buffer >= dynamic_buffers_[0]) break;
      add_view(buffer);
    }
    permute_views();
    lifetimes();
    groups();
    source_lines();
    return std::move(graph_);
  }

 private:
  void symbols() {
    graph_.params = below(rng_, 30) + 1;
    while (chance(rng_, 85)) {
      Expr expr;
      expr.kind = static_cast<ExprKind>(chance(rng_, 50) ? 0 : below(rng_, 8));
      if (expr.kind == ExprKind::kConst) {
        expr.value = random_word(rng_);  // often a value that another constant has
      } else {
        expr.a = symbol();
        expr.b = symbol();
      }
      graph_.exprs.push_back(expr);
    }
  }

  Sym symbol() { return below(rng_, graph_.symbols()); }
  Sym constant() { return graph_.constant(random_word(rng_)); }

  uint32_t add_buffer(BufferKind kind) {
    Buffer& buffer = graph_.buffers.emplace_back();
    buffer.kind = kind;
    buffer.survives = chance(rng_, 40);
    if (kind == BufferKind::kFresh) buffer.nbytes = symbol();
    return static_cast<uint32_t>(graph_.buffers.size()) - 1;
  }

  uint32_t add_view(uint32_t buffer) {
    View& view = graph_.views.emplace_back();
    view.buffer = buffer;
    view.dtype = pick(rng_, dtypes());
    for (uint32_t rank = below(rng_, 5); rank > 0; --rank) {
      view.sizes.push_back(symbol());
      view.strides.push_back(symbol());
    }
    view.offset = chance(rng_, 50) ? graph_.constant(0) : symbol();
    return static_cast<uint32_t>(graph_.views.size()) - 1;
  }

  uint32_t operand_view() {
    if (!used_views_.empty() && chance(rng_, 50)) return pick(rng_, used_views_);
    if (touchable_.empty() || chance(rng_, 10)) touchable_.push_back(add_buffer(BufferKind::kFresh));  // torch.empty
    used_views_.push_back(add_view(pick(rng_, touchable_)));
    return used_views_.back();
  }

  Arg operand(bool writes) {
    Arg arg;
    if (chance(rng_, 8)) return arg;
    if (!writes && chance(rng_, 10)) {
      arg.tag = ArgTag::kScalarTensor;
      arg.b = static_cast<uint32_t>(pick(rng_, dtypes())) | (chance(rng_, 50) ? 0x100u : 0u);
      arg.a = is_complex(static_cast<DType>(arg.b & 0xFF)) ? pair() : symbol();
      return arg;
    }
    arg.tag = ArgTag::kView;
    arg.a = operand_view();
    return arg;
  }

  Sym pair() {
    if (graph_.symbols() < 2) graph_.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, random_word(rng_)});
    return below(rng_, graph_.symbols() - 1);
  }

  Arg number(ArgKind kind, bool structural) {
    Arg arg;
    switch (kind) {
      case ArgKind::kFloat:
        arg.tag = ArgTag::kFloat;
        break;
      case ArgKind::kBool:
        arg.tag = ArgTag::kBool;
        break;
      case ArgKind::kScalar:
        arg.tag = static_cast<ArgTag>(static_cast<uint32_t>(ArgTag::kInt) + below(rng_, 4));
        break;
      default:
        arg.tag = ArgTag::kInt;
    }
    if (arg.tag != ArgTag::kComplex) {
      arg.a = structural ? constant() : symbol();
    } else if (structural) {
      arg.a = graph_.symbols();
      graph_.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, random_word(rng_)});
      graph_.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, random_word(rng_)});
    } else {
      arg.a = pair();
    }
    return arg;
  }

  Arg argument(const ArgDesc& desc) {
    Arg arg;
    if (desc.role == ArgRole::kClientOnly || (is_optional(desc.kind) && chance(rng_, 40))) return arg;
    const bool structural = desc.role == ArgRole::kStructural;
    switch (desc.kind) {
      case ArgKind::kTensor:
      case ArgKind::kOptionalTensor:
        return operand(desc.writes);
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        arg.tag = ArgTag::kList;
        for (uint32_t n = below(rng_, 4); n > 0; --n) arg.items.push_back(operand(desc.writes));
        return arg;
      case ArgKind::kString:
      case ArgKind::kOptionalString:
        arg.tag = ArgTag::kString;
        arg.text = random_text(rng_);
        return arg;
      case ArgKind::kDType:
        if (chance(rng_, 50)) return arg;
        arg.tag = ArgTag::kDType;
        arg.a = static_cast<uint32_t>(pick(rng_, dtypes()));
        return arg;
      case ArgKind::kMemoryFormat:
        if (chance(rng_, 50)) return arg;
        arg.tag = ArgTag::kMemoryFormat;
        arg.a = below(rng_, 4);
        return arg;
      case ArgKind::kGenerator:
        arg.tag = ArgTag::kGenerator;
        arg.a = pair();
        return arg;
      case ArgKind::kLayout:
      case ArgKind::kDevice:
      case ArgKind::kUnsupported:
        return arg;
      default:
        break;
    }
    const ArgKind element = element_kind(desc.kind);
    if (!is_number_list(desc.kind)) return number(element, structural);
    arg.tag = ArgTag::kList;
    for (uint32_t n = below(rng_, 4); n > 0; --n) arg.items.push_back(number(element, structural));
    return arg;
  }

  Arg dynamic_result() {
    Arg arg;
    arg.tag = ArgTag::kView;
    arg.a = static_cast<uint32_t>(graph_.views.size());
    const uint32_t buffer = add_buffer(BufferKind::kFresh);
    graph_.buffers[buffer].nbytes = kNoSym;
    dynamic_buffers_.push_back(buffer);
    View& view = graph_.views.emplace_back();
    view.buffer = buffer;
    view.dynamic = true;
    return arg;
  }

  Arg result(bool dynamic) {
    Arg arg;
    if (chance(rng_, 10)) return arg;
    if (dynamic && chance(rng_, 60)) return dynamic_result();
    const uint32_t buffer = made_.empty() || chance(rng_, 80) ? add_buffer(BufferKind::kFresh) : pick(rng_, made_);
    arg.tag = ArgTag::kView;
    arg.a = add_view(buffer);
    if (std::ranges::find(made_, buffer) == made_.end()) made_.push_back(buffer);
    made_views_.push_back(arg.a);
    return arg;
  }

  void node(bool dynamic) {
    Node node;
    node.opcode = pick(rng_, all_ops());
    node.record = chance(rng_, 70) ? static_cast<uint32_t>(graph_.nodes.size()) : below(rng_, 40);
    const OpDesc& desc = op_desc(node.opcode);
    for (const ArgDesc& arg : desc.args) node.args.push_back(argument(arg));
    made_.clear();
    made_views_.clear();
    for (const ResultDesc& desc_of_result : desc.results) {
      Arg& arg = node.results.emplace_back();
      if (desc_of_result.alias >= 0) continue;
      if (desc_of_result.kind == ResultKind::kTensor) arg = result(dynamic);
      if (desc_of_result.kind != ResultKind::kTensorList) continue;
      if (dynamic && chance(rng_, 40)) {
        arg = dynamic_result();
        continue;
      }
      arg.tag = ArgTag::kList;
      for (uint32_t n = below(rng_, 4); n > 0; --n) arg.items.push_back(result(dynamic));
    }
    touchable_.insert(touchable_.end(), made_.begin(), made_.end());
    used_views_.insert(used_views_.end(), made_views_.begin(), made_views_.end());
    graph_.nodes.push_back(std::move(node));
  }

  static void renumber(Arg& arg, const std::vector<uint32_t>& numbers) {
    if (arg.tag == ArgTag::kView) arg.a = numbers[arg.a];
    for (Arg& item : arg.items) renumber(item, numbers);
  }

  void permute_views() {
    if (chance(rng_, 50)) return;
    std::vector<uint32_t> numbers(graph_.views.size());
    for (uint32_t i = 0; i < numbers.size(); ++i) numbers[i] = i;
    std::shuffle(numbers.begin(), numbers.end(), rng_);
    std::vector<View> views(numbers.size());
    for (uint32_t i = 0; i < numbers.size(); ++i) views[numbers[i]] = std::move(graph_.views[i]);
    graph_.views = std::move(views);
    for (Node& node : graph_.nodes) {
      for (Arg& arg : node.args) renumber(arg, numbers);
      for (Arg& arg : node.results) renumber(arg, numbers);
    }
  }

  // Puts some of the nodes into groups, and marks some of the buffers that only one group uses.
  void groups() {
    if (chance(rng_, 50)) return;
    const auto nodes = static_cast<uint32_t>(graph_.nodes.size());
    std::vector<uint32_t> group_of(nodes, kNoNode);
    for (uint32_t i = 0; i < nodes; ++i) {
      if (chance(rng_, 50)) continue;
      Group group{i, std::min(nodes - 1, i + below(rng_, 4)), static_cast<GroupKind>(below(rng_, kGroupKinds)),
                  static_cast<uint8_t>(below(rng_, kGroupProperties + 1))};
      for (; i <= group.last; ++i) group_of[i] = static_cast<uint32_t>(graph_.groups.size());
      i = group.last;
      graph_.groups.push_back(group);
    }
    std::vector<std::vector<uint32_t>> users(graph_.buffers.size());
    for (uint32_t i = 0; i < nodes; ++i) {
      for_each_view(graph_.nodes[i],
                    [&](uint32_t view, bool) { users[graph_.views[view].buffer].push_back(group_of[i]); });
    }
    for (size_t b = 0; b < users.size(); ++b) {
      Buffer& buffer = graph_.buffers[b];
      const bool one = !users[b].empty() && users[b][0] != kNoNode &&
                       std::ranges::all_of(users[b], [&](uint32_t user) { return user == users[b][0]; });
      buffer.group_local = one && buffer.kind == BufferKind::kFresh && !buffer.survives && chance(rng_, 70);
    }
  }

  // Marks some of the buffers that may be written_once, and makes a memory plan.
  void lifetimes() {
    const size_t count = graph_.buffers.size();
    const std::vector<Lifetime> lives = find_lifetimes(graph_);
    std::vector<bool> seen(count);
    std::vector<bool> defined(count);
    std::vector<bool> spoiled(count);
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      for_each_view(graph_.nodes[i], [&](uint32_t view, bool writing) {
        const uint32_t buffer = graph_.views[view].buffer;
        if (!seen[buffer]) {
          seen[buffer] = true;
          defined[buffer] = writing;
        } else {
          spoiled[buffer] = spoiled[buffer] || writing || lives[buffer].first == i;
        }
      });
    }
    for (size_t i = 0; i < count; ++i) {
      const bool fresh = graph_.buffers[i].kind == BufferKind::kFresh;
      graph_.buffers[i].written_once = fresh && defined[i] && !spoiled[i] && chance(rng_, 70);
    }
    if (!options_.plan || chance(rng_, 60)) return;
    std::vector<bool> taken(count);
    for (uint32_t i = 0; i < count; ++i) {
      for (uint32_t source = 0; source < count; ++source) {
        if (taken[source] || source == i || graph_.buffers[source].survives || lives[i].first == kNoNode) continue;
        if (lives[source].last != lives[i].first || lives[source].first == lives[i].first || chance(rng_, 50)) continue;
        if (!may_work_in_place(graph_, graph_.nodes[lives[i].first], source, i)) continue;
        graph_.buffers[i].may_reuse = source;
        taken[source] = true;
        break;
      }
    }
  }

  void source_lines() {
    if (chance(rng_, 40)) return;
    graph_.source_lines.resize(below(rng_, 40));
    for (std::string& source : graph_.source_lines) {
      if (chance(rng_, 70)) source = random_text(rng_);
    }
  }

  Rng& rng_;
  const RandomGraphOptions& options_;
  Graph graph_;
  std::vector<uint32_t> touchable_;        // buffers that a node may read or write
  std::vector<uint32_t> used_views_;       // views of those buffers
  std::vector<uint32_t> dynamic_buffers_;  // created by the last node only
  std::vector<uint32_t> made_;             // created by the current node
  std::vector<uint32_t> made_views_;
};

// -- traces ----------------------------------------------------------------------------------------------------------

// Writes records with Trace's functions, and builds the graph that the trace must become.
class TraceMaker {
 public:
  TraceMaker(Rng& rng, RandomTrace& out) : rng_(rng), trace_(out.trace), graph_(out.graph) {}

  void make(uint32_t records) {
    for (uint32_t i = 0; i < records; ++i) record(i, i + 1 == records);
    for (size_t i = 0; i < trace_.buffers.size(); ++i) {
      if (chance(rng_, 40)) trace_.buffers[i].owner = nullptr;  // the storage died
      graph_.buffers[i].survives = trace_.buffers[i].owner != nullptr;
    }
    graph_.params = static_cast<uint32_t>(trace_.params.size());
    finish();
  }

 private:
  // Constants come after the parameters, whose number is known only at the end. Until `finish`, constants are numbered
  // from 0.
  uint32_t constant_index(int64_t value, bool shared) {
    if (shared) {
      for (uint32_t i = 0; i < graph_.exprs.size(); ++i) {
        if (graph_.exprs[i].value == value) return i;
      }
    }
    graph_.exprs.push_back({ExprKind::kConst, kNoSym, kNoSym, value});
    return static_cast<uint32_t>(graph_.exprs.size()) - 1;
  }

  void word_param(int64_t value) { trace_.param(value); }
  Sym next_param() const { return static_cast<Sym>(trace_.params.size()); }

  Arg view_arg(uint32_t slot) const {
    Arg arg;
    arg.tag = ArgTag::kView;
    arg.a = slot;
    return arg;
  }

  void describe_view(uint32_t buffer, DType dtype, const std::vector<int64_t>& sizes, Sym first) {
    View& view = views_.emplace_back();
    view.buffer = buffer;
    view.dtype = dtype;
    const uint32_t rank = static_cast<uint32_t>(sizes.size());
    for (uint32_t d = 0; d < rank; ++d) {
      const bool fixed = sizes[d] < 2;
      view.sizes.push_back(fixed ? constant_index(sizes[d], true) : first + d);
      fixed_.push_back(fixed);
      view.strides.push_back(first + rank + d);
    }
    view.offset = first + 2 * rank;
  }

  Arg new_view(bool known, bool result) {
    const DType dtype = pick(rng_, dtypes());
    std::vector<int64_t> sizes(chance(rng_, 5) ? 15 + below(rng_, 50) : below(rng_, 5));
    std::vector<int64_t> strides(sizes.size());
    for (int64_t& size : sizes) size = below(rng_, 5);
    for (int64_t& stride : strides) stride = below(rng_, 100);
    const int64_t offset = below(rng_, 50);
    uint32_t buffer = static_cast<uint32_t>(trace_.buffers.size());
    uint32_t slot = 0;
    if (known) {
      buffer = pick(rng_, touchable_);
      describe_view(buffer, dtype, sizes, next_param());
      slot = trace_.new_view(buffer, dtype, sizes, strides, offset);
    } else {
      const bool fresh = result || chance(rng_, 20);
      Buffer& described = graph_.buffers.emplace_back();
      described.kind = fresh ? BufferKind::kFresh : BufferKind::kInput;
      if (fresh) described.nbytes = next_param();
      describe_view(buffer, dtype, sizes, next_param() + fresh);
      slot = trace_.new_buffer_view(fresh ? 0 : 1000 + buffer, &trace_, 4096, dtype, sizes, strides, offset);
      (result ? made_ : touchable_).push_back(buffer);
    }
    (result ? made_slots_ : slots_).push_back(slot);
    return view_arg(slot);
  }

  Arg operand(bool writes) {
    if (chance(rng_, 8)) {
      trace_.word(kAbsent);
      return {};
    }
    if (!writes && chance(rng_, 10)) return scalar_operand();
    if (!slots_.empty() && chance(rng_, 60)) {
      const uint32_t slot = pick(rng_, slots_);
      trace_.use_view(slot);
      return view_arg(slot);
    }
    return new_view(!touchable_.empty() && chance(rng_, 40), false);
  }

  Arg scalar_operand() {
    const DType dtype = pick(rng_, dtypes());
    const bool wrapped = chance(rng_, 50);
    trace_.word(kScalarOperand | static_cast<uint32_t>(dtype) << 8 | static_cast<uint32_t>(wrapped));
    Arg arg;
    arg.tag = ArgTag::kScalarTensor;
    arg.a = next_param();
    arg.b = static_cast<uint32_t>(dtype) | (wrapped ? 0x100u : 0u);
    word_param(random_word(rng_));
    if (is_complex(dtype)) trace_.param(0.5);
    return arg;
  }

  Arg number(ArgKind kind, bool structural) {
    Arg arg;
    arg.tag = kind == ArgKind::kFloat ? ArgTag::kFloat : kind == ArgKind::kBool ? ArgTag::kBool : ArgTag::kInt;
    const int64_t value = kind == ArgKind::kBool ? static_cast<int64_t>(chance(rng_, 50)) : random_word(rng_);
    if (!structural) {
      arg.a = next_param();
      word_param(value);
    } else {
      if (kind == ArgKind::kFloat) {
        trace_.structural_float(std::bit_cast<double>(value));
      } else {
        trace_.structural_int(value);
      }
      arg.a = constant_index(value, true);
      arg.b = kConstantMark;
    }
    return arg;
  }

  Arg scalar(bool structural) {
    const auto tag = static_cast<ScalarTag>(1 + below(rng_, 4));
    trace_.word(static_cast<uint32_t>(tag));
    Arg arg;
    arg.tag = static_cast<ArgTag>(static_cast<uint32_t>(ArgTag::kInt) + static_cast<uint32_t>(tag) - 1);
    const bool complex = tag == ScalarTag::kComplex;
    const int64_t values[2] = {random_word(rng_), random_word(rng_)};
    if (!structural) arg.a = next_param();
    for (int i = 0; i < (complex ? 2 : 1); ++i) {
      if (!structural) {
        word_param(values[i]);
        continue;
      }
      trace_.structural_float(std::bit_cast<double>(values[i]));
      const uint32_t index = constant_index(values[i], !complex);
      if (i == 0) arg.a = index;
      arg.b = kConstantMark;
    }
    return arg;
  }

  Arg argument(const ArgDesc& desc) {
    Arg arg;
    if (desc.role == ArgRole::kClientOnly) return arg;
    const bool structural = desc.role == ArgRole::kStructural;
    const ArgKind element = element_kind(desc.kind);
    switch (desc.kind) {
      case ArgKind::kTensor:
      case ArgKind::kOptionalTensor:
        return operand(desc.writes);
      case ArgKind::kTensorList:
      case ArgKind::kOptionalTensorList:
        return list(arg, [&] { return operand(desc.writes); });
      case ArgKind::kString:
      case ArgKind::kOptionalString:
      case ArgKind::kDType:
      case ArgKind::kMemoryFormat:
        return name(desc.kind);
      case ArgKind::kGenerator:
        arg.tag = ArgTag::kGenerator;
        arg.a = next_param();
        word_param(7);
        word_param(random_word(rng_));
        return arg;
      case ArgKind::kScalar:
        return scalar(structural);
      case ArgKind::kOptionalScalar:
        if (chance(rng_, 60)) return scalar(structural);
        trace_.word(structural ? kAbsent : static_cast<uint32_t>(ScalarTag::kAbsent));
        return arg;
      case ArgKind::kOptionalInt:
      case ArgKind::kOptionalFloat:
      case ArgKind::kOptionalBool:
        if (chance(rng_, 40)) {
          trace_.word(structural ? kAbsent : 0);
          return arg;
        }
        if (!structural) trace_.word(1);
        return number(element, structural);
      default:
        break;
    }
    if (!is_number_list(desc.kind)) return number(element, structural);
    if (is_optional(desc.kind) && chance(rng_, 40)) {
      trace_.word(kAbsent);
      return arg;
    }
    return list(arg, [&] { return element == ArgKind::kScalar ? scalar(structural) : number(element, structural); });
  }

  template <typename F>
  Arg list(Arg& arg, F&& item) {
    arg.tag = ArgTag::kList;
    const uint32_t count = below(rng_, 4);
    trace_.word(count);
    for (uint32_t i = 0; i < count; ++i) arg.items.push_back(item());
    return arg;
  }

  Arg name(ArgKind kind) {
    Arg arg;
    if (chance(rng_, 40) && kind != ArgKind::kString) {
      trace_.word(kAbsent);
      return arg;
    }
    if (kind == ArgKind::kDType) {
      arg.tag = ArgTag::kDType;
      arg.a = static_cast<uint32_t>(pick(rng_, dtypes()));
      trace_.word(arg.a);
    } else if (kind == ArgKind::kMemoryFormat) {
      arg.tag = ArgTag::kMemoryFormat;
      arg.a = below(rng_, 4);
      trace_.word(arg.a);
    } else {
      arg.tag = ArgTag::kString;
      arg.text = random_text(rng_);
      trace_.word(intern_string(arg.text));
    }
    return arg;
  }

  Arg dynamic_result() {
    const Arg arg = view_arg(static_cast<uint32_t>(trace_.views.size()));
    View& view = views_.emplace_back();
    view.buffer = static_cast<uint32_t>(trace_.buffers.size());
    view.dynamic = true;
    graph_.buffers.emplace_back();
    trace_.new_dynamic_result(&trace_);
    return arg;
  }

  Arg result(bool last) {
    if (chance(rng_, 10)) {
      trace_.word(kAbsent);
      return {};
    }
    return last && chance(rng_, 30) ? dynamic_result() : new_view(false, true);
  }

  void record(uint32_t index, bool last) {
    Node node;
    do {
      node.opcode = pick(rng_, all_ops());
    } while (!recordable(op_desc(node.opcode)));
    const OpDesc& desc = op_desc(node.opcode);
    node.record = index;
    trace_.begin_record(node.opcode, {});
    for (const ArgDesc& arg : desc.args) node.args.push_back(argument(arg));
    made_.clear();
    made_slots_.clear();
    for (const ResultDesc& desc_of_result : desc.results) {
      Arg& arg = node.results.emplace_back();
      if (desc_of_result.alias >= 0) continue;
      if (desc_of_result.kind == ResultKind::kTensor) arg = result(last);
      if (desc_of_result.kind != ResultKind::kTensorList) continue;
      if (last && chance(rng_, 40)) {
        arg = dynamic_result();
      } else {
        list(arg, [&] { return result(last); });
      }
    }
    touchable_.insert(touchable_.end(), made_.begin(), made_.end());
    slots_.insert(slots_.end(), made_slots_.begin(), made_slots_.end());
    trace_.end_record();
    graph_.nodes.push_back(std::move(node));
  }

  static bool recordable(const OpDesc& desc) {
    return std::ranges::none_of(desc.args, [](const ArgDesc& arg) {
      return arg.kind == ArgKind::kUnsupported && arg.role != ArgRole::kClientOnly;
    });
  }

  // Turns the numbers of constants, which began at 0, into symbols.
  void finish() {
    const auto fix = [&](Arg& arg, const auto& self) -> void {
      if (arg.b == kConstantMark) {
        arg.b = 0;
        arg.a += graph_.params;
      }
      for (Arg& item : arg.items) self(item, self);
    };
    for (Node& node : graph_.nodes) {
      for (Arg& arg : node.args) fix(arg, fix);
    }
    size_t next = 0;
    for (View& view : views_) {
      for (Sym& size : view.sizes) {
        if (fixed_[next++]) size += graph_.params;
      }
    }
    graph_.views = std::move(views_);
  }

  static constexpr uint32_t kConstantMark = 0xC0FFEE;

  Rng& rng_;
  Trace& trace_;
  Graph& graph_;
  std::vector<View> views_;
  std::vector<bool> fixed_;  // for each size of each view: whether it is a constant
  std::vector<uint32_t> touchable_;
  std::vector<uint32_t> slots_;
  std::vector<uint32_t> made_;
  std::vector<uint32_t> made_slots_;
};

}  // namespace

Graph random_graph(Rng& rng, const RandomGraphOptions& options) { return GraphMaker(rng, options).make(); }

RandomTrace random_trace(Rng& rng, uint32_t max_records) {
  RandomTrace out;
  TraceMaker(rng, out).make(below(rng, max_records + 1));
  return out;
}

const std::vector<Opcode>& opaque_ops() {
  static const std::vector<Opcode> ops = [] {
    std::vector<Opcode> list;
    std::vector<OpaqueArg> every_kind;
    for (uint32_t kind = 0; kind < static_cast<uint32_t>(ArgKind::kUnsupported); ++kind) {
      every_kind.push_back({"a" + std::to_string(kind), static_cast<ArgKind>(kind), false, kind > 12});
    }
    const ResultDesc every_result[] = {{ResultKind::kTensor, -1}, {ResultKind::kTensorList, -1},
                                       {ResultKind::kInt, -1},    {ResultKind::kFloat, -1},
                                       {ResultKind::kBool, -1},   {ResultKind::kScalar, -1}};
    list.push_back(register_opaque("test::every_kind", every_kind, every_result, kOpHostResult | kOpDynamicShape));
    const OpaqueArg in_place[] = {{"self", ArgKind::kTensor, true, false},
                                  {"others", ArgKind::kTensorList, true, false}};
    const ResultDesc self[] = {{ResultKind::kTensor, 0}};
    list.push_back(register_opaque("test::in_place_.overload", in_place, self, kOpInPlace | kOpHiddenMutation));
    const OpaqueArg odd[] = {{"not a name", ArgKind::kTensor, false, true}, {"", ArgKind::kScalar, false, false}};
    list.push_back(register_opaque("odd name\n\"%0", odd, {}, 1u << 31));
    const OpaqueArg one[] = {{"self", ArgKind::kTensor, false, false}};
    const ResultDesc made[] = {{ResultKind::kTensor, -1}};
    list.push_back(register_opaque("test::pure", one, made, kOpPure));
    return list;
  }();
  return ops;
}

}  // namespace torch_remote::ir::testing
