#include "worker/targets/cuda/ops/interpreter/loop_encoder.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "codegen/loop/facts.h"
#include "codegen/loop/scalar_math.h"

namespace torch_remote::worker::cuda {
namespace {

using ir::DType;

Status unsupported_kernel(const char* what) { return {ErrorCode::kUnsupported, what}; }

static_assert(sizeof(InterpretArguments) <= 4096, "a kernel's parameters");
static_assert(kLoopCells <= UINT8_MAX && kLoopOperands <= UINT8_MAX, "fields of an instruction");

// At most this many chunks of rows, whose partial results a single thread adds up for each column.
constexpr int64_t kMaxChunks = 512;
constexpr int64_t kMaxTotalCells = 1 << 20;  // of all chunks

// Encodes a kernel with the numbers of one call as the interpreter's arguments.
class Encoder {
 public:
  explicit Encoder(const codegen::Launch& launch)
      : launch_(launch),
        kernel_(launch.kernel),
        facts_(codegen::facts(kernel_)),
        uses_(codegen::uses(kernel_, facts_)),
        schedule_(codegen::schedule(kernel_)) {}

  // `first_failure`: the number that failures of operand 0 report.
  Status run(uint32_t first_failure) {
    const bool fits = kernel_.values.size() <= kLoopCells && kernel_.operands.size() <= kLoopOperands &&
                      launch_.outer.size() + kernel_.dims() <= kLoopDims && schedule_.phases <= kLoopPhases &&
                      schedule_.totals.size() <= kLoopTotals;
    if (!fits) return unsupported_kernel("of so many values");
    if (std::ranges::any_of(kernel_.stores, [](const codegen::Store& s) { return s.adds && !s.indices.empty(); })) {
      return unsupported_kernel("that adds at indices");
    }
    first_failure_ = first_failure;
    add_operands(0);
    add_scalars();
    const bool has_rows = std::ranges::any_of(kernel_.values, [](const codegen::Value& value) {
      return value.kind == codegen::Kind::kReduce || value.kind == codegen::Kind::kRunning;
    });
    has_rows ? add_rows() : add_points();
    if (!schedule_.totals.empty()) add_finish();
    if (finish_ && finish_->points == 0) finish_.reset();
    return fits_ ? Status() : unsupported_kernel("of so many operations");
  }

  EncodedKernel take() {
    const int64_t cells = finish_ ? outer_positions() * main_.chunks * main_.total_cells : 0;
    return {main_, finish_, std::move(symbols_), static_cast<uint64_t>(cells) * sizeof(uint64_t)};
  }

 private:
  int64_t outer_positions() const {
    int64_t count = 1;
    for (const int64_t size : launch_.outer) count *= size;
    return count;
  }
  static uint8_t type_of(DType type) { return static_cast<uint8_t>(type); }
  bool along_columns(codegen::DimSet dims) const { return (dims & kernel_.column_dims()) != 0; }

  // -- Words ----------------------------------------------------------------------------------------------------------

  int word(uint64_t value) {
    if (next_word_ < kLoopWords) words_[next_word_] = value;
    fits_ &= next_word_ < kLoopWords;
    return next_word_++;
  }
  struct Fields {
    Instruction what;
    uint32_t op = 0, type = 0, from = 0, a = 0, b = 0, c = 0, to = 0;
  };
  void add(const Fields& f) {
    uint64_t all = 0;
    for (const uint32_t field : {f.to, f.c, f.b, f.a, f.from, f.type, f.op, static_cast<uint32_t>(f.what)}) {
      fits_ &= field <= UINT8_MAX;
      all = all << 8 | (field & 0xFF);
    }
    word(all);
  }

  // Adds the strides of all operands along the loops around the kernel, and along its dims from `first_dim` on.
  void add_operands(uint32_t first_dim) {
    for (uint32_t i = 0; i < kernel_.operands.size(); ++i) {
      const codegen::Binding& binding = launch_.operands[i];
      strides_.push_back(next_word_);
      for (const int64_t stride : binding.outer) word(static_cast<uint64_t>(stride));
      for (uint32_t d = first_dim; d < kernel_.dims(); ++d) word(static_cast<uint64_t>(binding.strides[d]));
      indexed_.push_back(next_word_);
      for (uint32_t d = 0; d < kernel_.operands[i].indexed; ++d) {
        word(static_cast<uint64_t>(binding.strides[kernel_.dims() + d]));
        word(static_cast<uint64_t>(binding.bounds[d]));
      }
    }
  }

  // Scalars without a symbol are constants.
  void add_scalars() {
    for (const ir::Sym symbol : launch_.scalar_symbols) {
      scalars_.push_back(symbol == ir::kNoSym ? codegen::kNone : static_cast<uint32_t>(symbols_.size()));
      if (symbol != ir::kNoSym) symbols_.push_back(symbol);
    }
    fits_ &= symbols_.size() <= kLoopScalars;
  }

  // -- Instructions ---------------------------------------------------------------------------------------------------

  void add_constant(uint32_t to, uint64_t bits) {
    // The word is after the code of this range, where nothing executes it.
    constants_.emplace_back(next_word_, bits);
    add({.what = Instruction::kConstant, .to = to});
  }
  void add_indices(uint32_t operand, const std::vector<uint32_t>& indices) {
    for (size_t d = 0; d < indices.size(); ++d) {
      const auto at = static_cast<uint32_t>(indexed_[operand]) + 2 * static_cast<uint32_t>(d);
      add({.what = Instruction::kOffset,
           .from = first_failure_ + operand,
           .a = indices[d],
           .b = at & 0xFF,
           .c = at >> 8});
    }
  }
  void add_element(Instruction what, uint32_t operand, uint32_t cell, uint32_t flags) {
    const auto at = static_cast<uint32_t>(strides_[operand]);
    add({.what = what,
         .op = operand,
         .from = type_of(kernel_.operands[operand].dtype),
         .a = at & 0xFF,
         .b = at >> 8,
         .c = flags,
         .to = cell});
  }

  void add_value(uint32_t i) {
    const codegen::Value& value = kernel_.values[i];
    Fields made{.what = Instruction::kApply,
                .op = static_cast<uint32_t>(value.op),
                .type = type_of(value.type),
                .a = value.a == codegen::kNone ? 0 : value.a,
                .b = value.b == codegen::kNone ? 0 : value.b,
                .c = value.c == codegen::kNone ? 0 : value.c,
                .to = i};
    switch (value.kind) {
      case codegen::Kind::kConstant:
        return add_constant(i, codegen::evaluate(value, value.type, {}, {}, {}).bits);
      case codegen::Kind::kScalar:
        if (scalars_[value.a] == codegen::kNone) return add_constant(i, launch_.scalars[value.a]);
        made.what = Instruction::kScalar;
        made.a = scalars_[value.a];
        return add(made);
      case codegen::Kind::kIndex:
        made.what = Instruction::kIndex;
        made.a = value.a + static_cast<uint32_t>(launch_.outer.size());
        return add(made);
      case codegen::Kind::kLoad:
        add_indices(value.operand, value.indices);
        return add_element(Instruction::kLoad, value.operand, i, 0);
      case codegen::Kind::kConvert:
        made.what = Instruction::kConvert;
        made.from = type_of(kernel_.values[value.a].type);
        return add(made);
      case codegen::Kind::kBits:
        made.what = Instruction::kBits;
        return add(made);
      case codegen::Kind::kFma:
        made.what = Instruction::kFma;
        return add(made);
      case codegen::Kind::kLdexp:
        made.what = Instruction::kLdexp;
        return add(made);
      case codegen::Kind::kRandom:
        made.what = Instruction::kRandom;
        return add(made);
      case codegen::Kind::kRunning:
        made.what = Instruction::kRunning;
        made.op = static_cast<uint32_t>(value.reduction);
        made.b = running_++;
        fits_ &= running_ <= kLoopReductions;
        return add(made);
      case codegen::Kind::kReduce:
        made.what = Instruction::kTotal;
        made.op = static_cast<uint32_t>(value.reduction);
        made.b = total_of(i);
        return add(made);
      case codegen::Kind::kScalarOp:
        if (divides_integers(value)) {
          const auto failure = first_failure_ + static_cast<uint32_t>(kernel_.operands.size());
          add({.what = Instruction::kDivisor, .from = failure, .a = value.b});
        }
        made.from = type_of(kernel_.values[value.typed()].type);
        return add(made);
    }
  }

  uint32_t total_of(uint32_t value) const {
    return static_cast<uint32_t>(std::ranges::find(schedule_.totals, value) - schedule_.totals.begin());
  }

  // Adds the values that `roots` need, directly or indirectly, and that `belongs` accepts.
  template <typename Belongs>
  void add_values(const std::vector<uint32_t>& roots, Belongs&& belongs) {
    std::vector<bool> needed(kernel_.values.size());
    for (const uint32_t root : roots) needed[root] = true;
    for (size_t i = needed.size(); i-- > 0;) {
      if (!needed[i] || !belongs(static_cast<uint32_t>(i))) {
        needed[i] = false;
        continue;
      }
      if (codegen::is_total(kernel_.values[i])) continue;
      for (const uint32_t input : codegen::inputs(kernel_.values[i])) needed[input] = true;
    }
    for (uint32_t i = 0; i < needed.size(); ++i) {
      if (needed[i]) add_value(i);
    }
  }

  std::vector<uint32_t> values_of(const codegen::Store& store) const {
    std::vector<uint32_t> all = store.indices;
    all.push_back(store.value);
    return all;
  }
  // The columns along which something with these dims does not vary.
  uint32_t flags_of(codegen::DimSet dims) const {
    uint32_t flags = 0;
    if (kernel_.columns != 0 && (dims & kernel_.last_column()) == 0) flags |= kFirstColumn;
    if (kernel_.columns == 2 && (dims >> kernel_.rows & 1) == 0) flags |= kFirstLine;
    return flags;
  }
  void add_store(const codegen::Store& store) {
    add_indices(store.operand, store.indices);
    const uint32_t flags = flags_of(codegen::facts(kernel_, store, facts_).dims) | (store.adds ? kAdds : 0);
    add_element(Instruction::kStore, store.operand, store.value, flags);
  }

  // Returns the range of the words that f adds.
  template <typename F>
  uint64_t range(F&& f) {
    const int begin = next_word_;
    f();
    const int end = next_word_;
    for (const auto& [at, bits] : constants_) {
      const auto place = static_cast<uint64_t>(word(bits));
      if (at < kLoopWords) words_[at] |= (place & 0xFF) << 32 | (place >> 8 & 0xFF) << 40;
    }
    constants_.clear();
    return static_cast<uint64_t>(begin) | static_cast<uint64_t>(end) << 32;
  }

  // -- Launches -------------------------------------------------------------------------------------------------------

  void set_dims(InterpretArguments* to) const {
    size_t d = 0;
    for (const int64_t size : launch_.outer) to->sizes[d++] = size;
    for (const int64_t size : launch_.sizes) to->sizes[d++] = size;
    to->outer = static_cast<i64>(launch_.outer.size());
    to->rows = kernel_.rows;
    to->columns = kernel_.columns;
  }
  void set_words(InterpretArguments* to) const { std::ranges::copy(words_, std::begin(to->words)); }

  void add_points() {
    set_dims(&main_);
    main_.ranges[kFirstPhase] = range([&] {
      std::vector<uint32_t> roots;
      for (const codegen::Store& store : kernel_.stores) {
        for (const uint32_t value : values_of(store)) roots.push_back(value);
      }
      add_values(roots, [](uint32_t) { return true; });
      for (const codegen::Store& store : kernel_.stores) add_store(store);
    });
    main_.points = 1;
    for (size_t d = 0; d < launch_.outer.size() + launch_.sizes.size(); ++d) main_.points *= main_.sizes[d];
    set_words(&main_);
  }

  void add_rows() {
    set_dims(&main_);
    main_.phases = schedule_.phases;
    for (uint32_t d = 0; d < kernel_.rows; ++d) main_.row_count *= launch_.sizes[d];
    main_.remainder_columns = launch_.remainder_columns;
    if (launch_.remainder_columns != 0) ++main_.row_count;
    uint64_t* of_phase = main_.ranges + kFirstPhase;
    for (uint32_t phase = 0; phase < schedule_.phases; ++phase, of_phase += kRangesPerPhase) {
      of_phase[0] = range([&] { add_row_values(phase); });
      of_phase[1] = range([&] { add_column_values(phase); });
      of_phase[2] = range([&] { add_reductions(phase); });
    }
    of_phase[0] = range([&] { add_row_values(schedule_.phases); });
    of_phase[kRangesPerPhase] = range([&] {
      for (const codegen::Store& store : kernel_.stores) {
        const codegen::StoreFacts at = codegen::facts(kernel_, store, facts_);
        if (!at.finish && !along_columns(at.dims)) add_store(store);
      }
    });
    main_.ranges[kRowTotals] = range([&] {
      for (const uint32_t total : schedule_.totals) {
        if (!along_columns(facts_[kernel_.values[total].a].dims)) add_total(total);
      }
    });
    set_totals();
    set_words(&main_);
  }

  // A row's own values, which use reductions of earlier phases.
  void add_row_values(uint32_t phase) {
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      if (uses_.rows[i] && !along_columns(facts_[i].dims) && !facts_[i].finish &&
          kernel_.values[i].kind != codegen::Kind::kReduce &&
          std::min(schedule_.values[i].phase, schedule_.phases) == phase) {
        add_value(i);
      }
    }
  }

  bool reduces_in(uint32_t value, uint32_t phase) const {
    const codegen::Value& reduce = kernel_.values[value];
    if (reduce.kind != codegen::Kind::kReduce || schedule_.values[reduce.a].phase != phase) return false;
    return codegen::is_total(reduce) ? uses_.finish[value] && along_columns(facts_[reduce.a].dims) : uses_.rows[value];
  }

  void add_column_values(uint32_t phase) {
    std::vector<uint32_t> roots;
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      if (reduces_in(i, phase)) roots.push_back(kernel_.values[i].a);
    }
    std::vector<const codegen::Store*> stores;
    for (const codegen::Store& store : kernel_.stores) {
      const codegen::StoreFacts at = codegen::facts(kernel_, store, facts_);
      if (at.finish || !along_columns(at.dims) || phase + 1 != schedule_.phases) continue;
      stores.push_back(&store);
      for (const uint32_t value : values_of(store)) roots.push_back(value);
    }
    running_ = 0;
    add_values(roots, [&](uint32_t i) { return along_columns(facts_[i].dims) && !facts_[i].finish; });
    for (const codegen::Store* const store : stores) add_store(*store);
  }

  void add_reductions(uint32_t phase) {
    int count = 0;
    for (uint32_t i = 0; i < kernel_.values.size(); ++i) {
      if (!reduces_in(i, phase)) continue;
      fits_ &= ++count <= kLoopReductions;
      const codegen::Value& value = kernel_.values[i];
      if (codegen::is_total(value)) {
        add_total(i);
      } else {
        add({.what = Instruction::kReduce,
             .op = static_cast<uint32_t>(value.reduction),
             .type = type_of(value.type),
             .from = type_of(kernel_.values[value.a].type),
             .a = value.a,
             .to = i});
      }
    }
  }
  void add_total(uint32_t total) {
    const codegen::Value& value = kernel_.values[total];
    add({.what = Instruction::kAddTotal,
         .op = static_cast<uint32_t>(value.reduction),
         .type = type_of(value.type),
         .from = type_of(kernel_.values[value.a].type),
         .a = value.a,
         .b = total_of(total)});
  }

  void set_totals() {
    for (size_t t = 0; t < schedule_.totals.size(); ++t) {
      const uint32_t total = schedule_.totals[t];
      main_.first_cell[t] = main_.total_cells;
      main_.cells_of[t] = 1;
      for (uint32_t d = kernel_.rows; d < kernel_.dims(); ++d) {
        if ((facts_[total].dims >> d & 1) != 0) main_.cells_of[t] *= launch_.sizes[d];
      }
      main_.total_flags[t] = flags_of(facts_[total].dims);
      main_.by_line[t] = kernel_.values[total].over == codegen::Over::kLines ? 1 : 0;
      main_.total_cells += main_.cells_of[t];
    }
    main_.chunk = 1;
    if (main_.total_cells != 0) {
      const int64_t most = std::clamp<int64_t>(kMaxTotalCells / main_.total_cells, 8, kMaxChunks);
      main_.chunk = std::max<int64_t>((main_.row_count + most - 1) / most, 1);
    }
    main_.chunks = (main_.row_count + main_.chunk - 1) / main_.chunk;
  }

  // Makes the launch that computes what depends on reductions over all rows: at the columns of the stores.
  void add_finish() {
    finish_ = main_;
    InterpretArguments& to = *finish_;
    codegen::DimSet dims = 0;
    next_word_ = 0;
    words_.fill(0);
    strides_.clear();
    indexed_.clear();
    add_operands(kernel_.rows);
    std::ranges::fill(to.ranges, 0);
    to.phases = 0;
    to.ranges[kFirstPhase] = range([&] {
      std::vector<uint32_t> roots;
      for (const codegen::Store& store : kernel_.stores) {
        const codegen::StoreFacts at = codegen::facts(kernel_, store, facts_);
        if (!at.finish) continue;
        dims |= at.dims;
        for (const uint32_t value : values_of(store)) roots.push_back(value);
      }
      add_values(roots, [](uint32_t) { return true; });
      for (const codegen::Store& store : kernel_.stores) {
        if (codegen::facts(kernel_, store, facts_).finish) add_store(store);
      }
    });
    to.rows = 0;
    to.points = outer_positions();
    for (uint32_t d = 0; d < kernel_.columns; ++d) {
      i64& size = to.sizes[launch_.outer.size() + d];
      size = (dims >> (kernel_.rows + d) & 1) != 0 ? launch_.sizes[kernel_.rows + d] : 1;
      to.points *= size;
    }
    set_words(&to);
  }

  const codegen::Launch& launch_;
  const codegen::Kernel& kernel_;
  const std::vector<codegen::Facts> facts_;
  const codegen::UsedValues uses_;
  const codegen::Schedule schedule_;
  InterpretArguments main_;
  std::optional<InterpretArguments> finish_;
  std::array<uint64_t, kLoopWords> words_ = {};
  std::vector<std::pair<int, uint64_t>> constants_;  // instructions, and the constants that they load
  std::vector<int> strides_, indexed_;               // the first word of each operand
  std::vector<uint32_t> scalars_;  // for each scalar its number among `symbols_`; codegen::kNone: a constant
  std::vector<ir::Sym> symbols_;
  uint32_t first_failure_ = 0, running_ = 0;
  int next_word_ = 0;
  bool fits_ = true;
};

}  // namespace

bool divides_integers(const codegen::Value& value) {
  return value.kind == codegen::Kind::kScalarOp && ir::divides_integers(value.op) && !ir::is_float(value.type);
}

EncodedKernel::Size EncodedKernel::size_of(const InterpretArguments& arguments) {
  // More items are computed by the blocks in turn.
  constexpr int64_t kMostBlocks = 1 << 16;
  if (arguments.points != 0) {
    return {std::min((arguments.points + kInterpretThreads - 1) / kInterpretThreads, kMostBlocks), kInterpretThreads};
  }
  int64_t items = arguments.chunks;
  for (int64_t d = 0; d < arguments.outer; ++d) items *= arguments.sizes[d];
  const int64_t last = arguments.outer + arguments.rows + arguments.columns - 1;
  const int64_t columns = arguments.columns == 0 ? 1 : arguments.sizes[last];
  const auto threads = static_cast<uint64_t>(std::clamp<int64_t>(columns, 32, kInterpretThreads));
  return {std::min(items, kMostBlocks), static_cast<unsigned>(std::bit_ceil(threads))};
}

Status encode(const codegen::Launch& launch, uint32_t first_failure, EncodedKernel* encoded) {
  Encoder encoder(launch);
  if (Status status = encoder.run(first_failure); !status.ok()) return status;
  *encoded = encoder.take();
  return {};
}

}  // namespace torch_remote::worker::cuda
