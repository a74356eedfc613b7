#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "ir/graph.h"
#include "ir/status.h"
#include "worker/targets/cuda/device/late_failures.h"
#include "worker/targets/cuda/kernels/kernel_images.h"
#include "worker/targets/cuda/launch/place.h"

// What is done for a node by kernels that are written by hand (worker/targets/cuda/kernels). No GPU here.
namespace torch_remote::worker::cuda {

// A kernel, with its argument: a struct of kernels/arguments.h.
struct OpLaunch {
  KernelFile file = KernelFile::kFill;
  const char* kernel = "";
  unsigned grid = 1, block = 1;
  std::vector<uint64_t> words;
  // Words that only a run knows.
  struct Address {
    size_t word = 0;
    Place place;
  };
  struct Parameter {
    size_t word = 0;
    ir::Sym symbol = ir::kNoSym;
  };
  std::vector<Address> addresses;
  std::vector<Parameter> parameters;
  std::optional<size_t> numbers;  // as Work has it: `parameters` are the words behind it
  std::optional<size_t> failure;  // an IndexRecord, whose operands are the plan's
};

// Bytes of one value.
struct OpFill {
  Place to;
  uint64_t nbytes = 0;
  uint8_t value = 0;
};

// Bytes that the host computes of the run's numbers.
struct OpUpload {
  Place to;
  std::function<std::vector<std::byte>(std::span<const int64_t> values)> make;
};

using OpStep = std::variant<Moved, OpLaunch, OpFill, OpUpload>;

// A result of which only data tell how large it is.
struct DynamicResult {
  uint32_t view = 0;
  ir::DType dtype = ir::DType::kInt64;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};   // none: packed
  std::optional<int64_t> number = {};  // the result is this one, of the host's
};

struct OpPlan {
  std::vector<uint64_t> scratch;  // bytes of each
  std::vector<OpStep> steps;
  std::vector<IndexedOperand> operands;  // of failures
  // With dynamic results: a number (i64) that the host reads when the steps are done, and then what else is done. The
  // second plan's scratch follows the first one's, and its buffers are those of the results.
  std::optional<Place> count;
  std::function<Status(int64_t count, OpPlan* rest, std::vector<DynamicResult>* results)> then;
};

// A view, in one run.
struct OpTensor {
  uint32_t view = 0;
  Place place;
  ir::DType dtype = ir::DType::kFloat32;
  std::vector<int64_t> sizes, strides;

  int64_t count() const;
  bool is_packed() const;
  uint64_t nbytes() const { return static_cast<uint64_t>(count()) * ir::item_size(dtype); }
};

// What lies before, along and behind a dim.
struct Split {
  int64_t outer = 1, length = 1, inner = 1;
};
Split split(std::span<const int64_t> sizes, int64_t dim);

std::vector<int64_t> packed_strides(std::span<const int64_t> sizes);

// A number as bits of a float.
uint64_t float_bits(double x, ir::DType dtype);

// The dtype of a complex number's parts; and the tensor of them, with a last dim of two.
ir::DType part_of(ir::DType dtype);
OpTensor parts_of(const OpTensor& tensor);

// Makes a node's plan for one run's values.
class OpPlanner {
 public:
  OpPlanner(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, OpPlan* plan,
            std::vector<ir::Sym>* symbols)
      : graph_(graph), node_(graph.nodes[node]), number_(node), values_(values), plan_(plan), symbols_(symbols) {}

  // -- the node

  std::string_view op() const { return ir::op_desc(node_.opcode).name; }
  // Null: there is no such argument, or it was not given.
  const ir::Arg* argument(std::string_view name) const;
  bool has(std::string_view name) const { return argument(name) != nullptr; }
  // Numbers; the plan is made anew when they change.
  int64_t whole(std::string_view name, int64_t otherwise = 0);
  double number(std::string_view name, double otherwise = 0);
  bool flag(std::string_view name, bool otherwise = false) { return whole(name, otherwise ? 1 : 0) != 0; }
  std::vector<int64_t> wholes(std::string_view name);
  int64_t value(ir::Sym symbol);
  // A number as bits of an element.
  uint64_t bits(std::string_view name, ir::DType dtype);
  std::optional<OpTensor> tensor(std::string_view name);
  OpTensor tensor_of(uint32_t view) const;
  // The only one of `indices`, if it is a mask, and the dim that it begins with.
  std::optional<std::pair<OpTensor, size_t>> mask() const;
  // The i-th result, or the argument that it is. None: it is not wanted.
  std::optional<OpTensor> result(size_t i);
  // The i-th one of a result that is a list.
  std::optional<OpTensor> listed_result(size_t list, size_t i) const;
  // The view of a result whose size depends on data.
  std::optional<uint32_t> dynamic_result(size_t i) const;

  // -- its plan

  Place scratch(uint64_t nbytes);
  // Packed elements of it, in that dtype; those of it where it has them.
  Place packed(const OpTensor& tensor, ir::DType dtype);
  Place packed(const OpTensor& tensor) { return packed(tensor, tensor.dtype); }
  // The same tensor, in memory that nothing else is written to.
  OpTensor apart(const OpTensor& tensor, const OpTensor& written);
  // Where packed elements of a result go, which no operand lies in; what is moved from there is moved by `finish`.
  Place output(const OpTensor& to);
  void copy(const OpTensor& from, const OpTensor& to);  // broadcast
  void zero(Place to, uint64_t nbytes) { plan_->steps.emplace_back(OpFill{to, nbytes, 0}); }
  void upload(OpUpload upload) { plan_->steps.emplace_back(std::move(upload)); }
  uint32_t add_operand(int64_t dim, std::string words = {});

  // A launch, with words to fill in. It becomes a step where its expression ends, and can only be used in that one:
  // what its operands ask for (`packed`, `copy`) are steps before it, wherever they are written.
  template <typename T>
  class [[nodiscard]] Call {
   public:
    Call(std::vector<OpStep>* steps, OpLaunch made, const T& given)
        : steps_(steps), made_(std::move(made)), given_(given) {}
    ~Call() {
      if (made_.grid != 0) steps_->emplace_back(std::move(made_));
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

    template <typename U>
    Call&& at(U T::* member, const Place& place) && {
      add(word(&(given_.*member)), place);
      return std::move(*this);
    }
    template <typename F>
    Call&& at_word(F&& member, const Place& place) && {
      add(word(member(given_)), place);
      return std::move(*this);
    }
    // Of an array.
    template <typename F>
    Call&& at_words(F&& first, std::span<const Place> places) && {
      for (size_t i = 0; i < places.size(); ++i) add(word(first(given_)) + i, places[i]);
      return std::move(*this);
    }
    // Members, and the place of each.
    template <typename Members>
    Call&& at_each(const Members& members) && {
      for (const auto& [member, place] : members) add(word(&(given_.*member)), place);
      return std::move(*this);
    }
    // Members side by side, from one that can be their address.
    template <typename U>
    Call&& parameters(U T::* numbers, std::initializer_list<ir::Sym> symbols) && {
      made_.numbers = word(&(given_.*numbers));
      for (const ir::Sym symbol : symbols) {
        made_.parameters.push_back({*made_.numbers + 1 + made_.parameters.size(), symbol});
      }
      return std::move(*this);
    }
    template <typename F>
    Call&& failure(F&& member, bool can_fail = true) && {
      if (can_fail) made_.failure = word(member(given_));
      return std::move(*this);
    }

   private:
    size_t word(const void* member) const {
      return static_cast<size_t>(static_cast<const char*>(member) - reinterpret_cast<const char*>(&given_)) / 8;
    }
    void add(size_t word, const Place& place) {
      if (place.buffer != kNowhere) made_.addresses.push_back({word, place});
    }

    std::vector<OpStep>* const steps_;
    OpLaunch made_;
    const T given_;
  };
  // Of so many blocks; none: nothing is done.
  template <typename T>
  Call<T> launch(KernelFile file, const char* kernel, const T& given, int64_t grid, unsigned block = 256) {
    return add_launch(&plan_->steps, file, kernel, given, grid, block);
  }
  // The same of other steps: those that follow when a count is known.
  template <typename T>
  static Call<T> add_launch(std::vector<OpStep>* steps, KernelFile file, const char* kernel, const T& given,
                            int64_t grid, unsigned block = 256) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
    OpLaunch made;
    made.file = file;
    made.kernel = kernel;
    made.grid = grid <= 0 ? 0 : static_cast<unsigned>(grid);
    made.block = block;
    made.words.resize(sizeof(T) / 8);
    std::memcpy(made.words.data(), &given, sizeof(T));
    return {steps, std::move(made), given};
  }

  // After the last step.
  void finish();

  OpPlan& plan() { return *plan_; }
  const ir::Graph& graph() const { return graph_; }

 private:
  bool is_read(uint32_t buffer) const;
  void move(Place from, ir::DType from_type, std::span<const int64_t> from_strides, const OpTensor& to);
  // Between complex numbers and others.
  void move_parts(Place from, ir::DType from_type, std::span<const int64_t> from_strides, const OpTensor& to);

  const ir::Graph& graph_;
  const ir::Node& node_;
  const uint32_t number_;
  std::span<const int64_t> values_;
  OpPlan* const plan_;
  std::vector<ir::Sym>* const symbols_;
  struct Late {
    Place from;
    OpTensor to;
  };
  std::vector<Late> late_;
};

// Where a block does an item, and goes on to others.
inline constexpr int64_t kMostBlocks = 1 << 16;

// Blocks of 256 threads for so many items, each of which goes on to others.
inline int64_t blocks_for(int64_t items) {
  constexpr int64_t kMost = 4096;
  return items <= 0 ? 0 : items > kMost * 256 ? kMost : (items + 255) / 256;
}

inline Status refuse(std::string what) { return {ErrorCode::kUnsupported, std::move(what)}; }

// -- the ops

using PlanOp = Status (*)(OpPlanner& planner);
// By file; each is a list of names and functions.
struct NamedPlan {
  std::string_view name;
  PlanOp plan;
  bool takes_complex = false;  // elements are only moved, or the plan looks at dtypes itself
};
// Of an op's name: that of ATen's ops without namespace and overload; null: there is none.
const NamedPlan* find_op_plan(ir::Opcode opcode, bool of_complex = false);
std::span<const NamedPlan> random_plans();
std::span<const NamedPlan> scan_plans();
std::span<const NamedPlan> sort_plans();
std::span<const NamedPlan> index_plans();
std::span<const NamedPlan> select_plans();
std::span<const NamedPlan> fill_plans();
std::span<const NamedPlan> attention_plans();
std::span<const NamedPlan> image_plans();
std::span<const NamedPlan> norm_plans();
std::span<const NamedPlan> rnn_plans();
std::span<const NamedPlan> reduce_plans();
std::span<const NamedPlan> pointwise_plans();
std::span<const NamedPlan> search_plans();
std::span<const NamedPlan> view_plans();
std::span<const NamedPlan> pair_plans();
std::span<const NamedPlan> bag_plans();
std::span<const NamedPlan> grid_plans();
std::span<const NamedPlan> ctc_plans();
std::span<const NamedPlan> margin_plans();
std::span<const NamedPlan> complex_plans();

// Makes the first result, of which the client may know no sizes although no data tell them. `make` adds the steps that
// write its packed elements.
using MakeResult = std::function<void(std::vector<OpStep>* steps, Place to)>;
Status make_result(OpPlanner& planner, ir::DType dtype, const std::vector<int64_t>& sizes, const MakeResult& make);

// The elements of `from` at all places of `to`, one behind another in that dtype; along `dim`, if it is given, each is
// so many places earlier, and the first ones are the last.
OpTensor turned(OpPlanner& planner, const OpTensor& from, const OpTensor& to, ir::DType dtype,
                std::optional<size_t> dim = std::nullopt, int64_t by = 0);

// How many of so many packed elements are not 0, as an i64.
void count_nonzero(OpPlanner& planner, Place in, ir::DType dtype, int64_t count, Place out);

// A number of the call as an element of a complex dtype, without dims. None: it is a tensor's, or not there.
std::optional<OpTensor> complex_number(OpPlanner& planner, std::string_view name, ir::DType dtype);
// How large each of complex numbers is, in a tensor of real ones.
OpTensor sizes_of(OpPlanner& planner, const OpTensor& tensor);

// Sums of complex numbers, part by part.
Status sum_of_parts(OpPlanner& planner);
Status mean_of_parts(OpPlanner& planner);
// Variances and deviations: of both parts together.
Status variance_of_parts(OpPlanner& planner);
Status deviation_of_parts(OpPlanner& planner);

// Norms over some dims, of floats or complex numbers, into packed floats.
void norm_over(OpPlanner& planner, const OpTensor& from, const std::vector<bool>& dims, double p, const OpTensor& to);

// All elements of a packed tensor become one.
enum class ReduceAll : uint8_t { kSum, kMean, kMax, kMin };
void reduce_all(OpPlanner& planner, ReduceAll how, const OpTensor& from, const OpTensor& to);

// Whether each of packed elements, as many as `to` has, is one of those of a packed tensor of its dtype.
Status search_members(OpPlanner& planner, Place elements, const OpTensor& to, const OpTensor& members, bool inverts);

// c10::promoteTypes, of reals.
ir::DType promote(ir::DType a, ir::DType b);

// Rows of keys (u64, `keys`, overwritten), sorted: where keys and places (u32) are then.
struct Sorted {
  Place keys, places;
};
Sorted sort_rows(OpPlanner& planner, Place keys, int64_t rows, int64_t length);
// The same of a tensor's elements, along a dim.
Status sort_tensor(OpPlanner& planner, const OpTensor& tensor, Place packed, const Split& dims, bool descending,
                   Sorted* sorted);

// x[mask], whose size depends on data.
Status plan_index_by_mask(OpPlanner& planner);

}  // namespace torch_remote::worker::cuda
