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
#include "worker/targets/cuda/device/deferred_failures.h"
#include "worker/targets/cuda/kernels/kernel_images.h"
#include "worker/targets/cuda/launch/location.h"

// Plans how hand-written kernels (worker/targets/cuda/kernels) execute a node. Needs no GPU.
namespace torch_remote::worker::cuda {

// A kernel launch with its only argument, a struct of kernels/arguments.h.
struct OpLaunch {
  KernelFile file = KernelFile::kFill;
  const char* kernel = "";
  unsigned grid = 1, block = 1;
  std::vector<uint64_t> words;
  // Words that are known only in a run.
  struct Address {
    size_t word = 0;
    Location location;
  };
  struct Parameter {
    size_t word = 0;
    ir::Sym symbol = ir::kNoSym;
  };
  std::vector<Address> addresses;
  std::vector<Parameter> parameters;
  std::optional<size_t> scalars_word;  // As in WorkItem: `parameters` are the words after it.
  std::optional<size_t> failure;       // The address of an IndexRecord; its operands are the plan's.
};

// Fills memory with one byte value.
struct OpFill {
  Location to;
  uint64_t nbytes = 0;
  uint8_t value = 0;
};

// Bytes that the host computes from the run's values.
struct OpUpload {
  Location to;
  std::function<std::vector<std::byte>(std::span<const int64_t> values)> make;
};

using OpStep = std::variant<StridedMove, OpLaunch, OpFill, OpUpload>;

// A result whose size depends on data.
struct DynamicResult {
  uint32_t view = 0;
  ir::DType dtype = ir::DType::kInt64;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};   // Empty: contiguous.
  std::optional<int64_t> number = {};  // The result is this number on the host.
};

struct OpPlan {
  std::vector<uint64_t> scratch;  // Bytes of each piece.
  std::vector<OpStep> steps;
  std::vector<IndexedOperand> operands;  // Operands that failures refer to.
  // With dynamic results: the location of an i64 that the host reads after the steps, and a function that plans the
  // rest. The second plan's scratch follows the first one's, and its buffers are those of the results.
  std::optional<Location> count;
  std::function<Status(int64_t count, OpPlan* rest, std::vector<DynamicResult>* results)> plan_rest;
};

// A view with the values of one run.
struct OpTensor {
  uint32_t view = 0;
  Location location;
  ir::DType dtype = ir::DType::kFloat32;
  std::vector<int64_t> sizes, strides;

  int64_t count() const;
  bool is_packed() const;
  uint64_t nbytes() const { return static_cast<uint64_t>(count()) * ir::item_size(dtype); }
};

// The numbers of elements before, along and after a dim.
struct OuterLengthInner {
  int64_t outer = 1, length = 1, inner = 1;
};
OuterLengthInner split(std::span<const int64_t> sizes, int64_t dim);

std::vector<int64_t> packed_strides(std::span<const int64_t> sizes);

// A number as the bits of a float dtype.
uint64_t float_bits(double x, ir::DType dtype);

// The dtype of a complex number's parts; and a view of the parts, with a last dim of two.
ir::DType part_of(ir::DType dtype);
OpTensor parts_of(const OpTensor& tensor);

// Makes a node's plan for one run's values.
class OpPlanner {
 public:
  OpPlanner(const ir::Graph& graph, uint32_t node, std::span<const int64_t> values, OpPlan* plan,
            std::vector<ir::Sym>* symbols)
      : graph_(graph), node_(graph.nodes[node]), number_(node), values_(values), plan_(plan), symbols_(symbols) {}

  // -- The node

  std::string_view op() const { return ir::op_desc(node_.opcode).name; }
  // Null: there is no such argument, or it was not given.
  const ir::Arg* argument(std::string_view name) const;
  bool has(std::string_view name) const { return argument(name) != nullptr; }
  // Number arguments. Every value that is read becomes a dependency: the node is planned anew when it changes.
  int64_t integer(std::string_view name, int64_t otherwise = 0);
  double number(std::string_view name, double otherwise = 0);
  bool flag(std::string_view name, bool otherwise = false) { return integer(name, otherwise ? 1 : 0) != 0; }
  std::vector<int64_t> integers(std::string_view name);
  int64_t value(ir::Sym symbol);
  // A number argument as the bits of an element.
  uint64_t bits(std::string_view name, ir::DType dtype);
  std::optional<OpTensor> tensor(std::string_view name);
  OpTensor tensor_of(uint32_t view) const;
  // If `indices` has a single entry and it is a mask: the mask, and its first dim.
  std::optional<std::pair<OpTensor, size_t>> mask() const;
  // The i-th result, or the argument that it aliases. None: the result is not used.
  std::optional<OpTensor> result(size_t i);
  // The i-th tensor of a result that is a list.
  std::optional<OpTensor> listed_result(size_t list, size_t i) const;
  // The view of a result whose size depends on data.
  std::optional<uint32_t> dynamic_result(size_t i) const;

  // -- Its plan

  Location scratch(uint64_t nbytes);
  // The tensor's elements, contiguous and in that dtype: the tensor itself if it fits, else a copy.
  Location packed(const OpTensor& tensor, ir::DType dtype);
  Location packed(const OpTensor& tensor) { return packed(tensor, tensor.dtype); }
  // The same as a tensor.
  OpTensor packed_tensor(const OpTensor& tensor, ir::DType dtype);
  // The tensor, copied if it shares a buffer with `written`.
  OpTensor without_overlap(const OpTensor& tensor, const OpTensor& written);
  // Where to write a result's contiguous elements. It is in scratch memory if the result is strided or an operand
  // shares its buffer; `finish` then adds the copy.
  Location output(const OpTensor& to);
  void copy(const OpTensor& from, const OpTensor& to);  // Broadcasts `from`.
  void zero(Location to, uint64_t nbytes) { plan_->steps.emplace_back(OpFill{to, nbytes, 0}); }
  void upload(OpUpload upload) { plan_->steps.emplace_back(std::move(upload)); }
  uint32_t add_operand(int64_t dim, std::string message = {});
  uint32_t add_described_operand(std::string (*describe)(int64_t index, int64_t bound));

  // A launch, with words to fill in. It becomes a step at the end of the full expression, and cannot be used after
  // that. So steps that its operands add (`packed`, `copy`) always come before it.
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
    Call&& at(U T::* member, const Location& location) && {
      add(word(&(given_.*member)), location);
      return std::move(*this);
    }
    template <typename F>
    Call&& at_word(F&& member, const Location& location) && {
      add(word(member(given_)), location);
      return std::move(*this);
    }
    // Fills in elements of an array.
    template <typename F>
    Call&& at_words(F&& first, std::span<const Location> locations) && {
      for (size_t i = 0; i < locations.size(); ++i) add(word(first(given_)) + i, locations[i]);
      return std::move(*this);
    }
    // Fills in several members with their locations.
    template <typename Members>
    Call&& at_each(const Members& members) && {
      for (const auto& [member, location] : members) add(word(&(given_.*member)), location);
      return std::move(*this);
    }
    // Consecutive members, which follow a member that can hold their address in GPU memory.
    template <typename U>
    Call&& parameters(U T::* numbers, std::span<const ir::Sym> symbols) && {
      made_.scalars_word = word(&(given_.*numbers));
      for (const ir::Sym symbol : symbols) {
        made_.parameters.push_back({*made_.scalars_word + 1 + made_.parameters.size(), symbol});
      }
      return std::move(*this);
    }
    template <typename U>
    Call&& parameters(U T::* numbers, std::initializer_list<ir::Sym> symbols) && {
      return std::move(*this).parameters(numbers, std::span<const ir::Sym>(symbols.begin(), symbols.size()));
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
    void add(size_t word, const Location& location) {
      if (location.buffer != kNoLocation) made_.addresses.push_back({word, location});
    }

    std::vector<OpStep>* const steps_;
    OpLaunch made_;
    const T given_;
  };
  // A launch of `grid` blocks; none if it is 0 or less.
  template <typename T>
  Call<T> launch(KernelFile file, const char* kernel, const T& given, int64_t grid, unsigned block = 256) {
    return add_launch(&plan_->steps, file, kernel, given, grid, block);
  }
  // The same for other steps, which follow once a count is known.
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

  // Must be called after the last step.
  void finish();

  OpPlan& plan() { return *plan_; }
  const ir::Node& node() const { return node_; }
  uint32_t number() const { return number_; }
  // The values of all symbols. A plan that depends on one must read it with `value`.
  std::span<const int64_t> values() const { return values_; }
  const ir::Graph& graph() const { return graph_; }

 private:
  bool is_read(uint32_t buffer) const;
  void add_copy(Location from, ir::DType from_type, std::span<const int64_t> from_strides, const OpTensor& to);
  // Copies between complex and real dtypes.
  void add_parts_copy(Location from, ir::DType from_type, std::span<const int64_t> from_strides, const OpTensor& to);

  const ir::Graph& graph_;
  const ir::Node& node_;
  const uint32_t number_;
  std::span<const int64_t> values_;
  OpPlan* const plan_;
  std::vector<ir::Sym>* const symbols_;
  struct DeferredCopy {
    Location from;
    OpTensor to;
  };
  std::vector<DeferredCopy> deferred_copies_;
};

// The most blocks of a launch in which each block loops over items.
inline constexpr int64_t kMaxBlocks = 1 << 16;

// The number of blocks of 256 threads for so many items; threads loop if there are more.
inline int64_t blocks_for(int64_t items) {
  constexpr int64_t kMax = 4096;
  return items <= 0 ? 0 : items > kMax * 256 ? kMax : (items + 255) / 256;
}

inline Status unsupported(std::string what) { return {ErrorCode::kUnsupported, std::move(what)}; }

// -- the ops

using PlanOp = Status (*)(OpPlanner& planner);
struct NamedPlan {
  std::string_view name;
  PlanOp plan;
  bool takes_complex = false;  // Elements are only copied, or the plan checks dtypes itself.
  bool is_lowered = false;     // Its formula is that of the op's expression or expansion.
};
// The plan of an op. Null: there is none.
const NamedPlan* find_op_plan(ir::Opcode opcode, bool of_complex = false);

// The plans that the column `cuda` of ir/ops/*.toml names, by opcode and for ops outside the table by name
// (op_plans_generated.h). A plan "sort.topk" is the function sort_plans::topk. Null: there is none for these dtypes.
struct PlannedOp {
  ir::Opcode opcode;
  const NamedPlan *real, *complex;
};
struct PlannedName {
  std::string_view name;
  const NamedPlan *real, *complex;
};

// The plan of an op that has an expression or another expansion. Null: it has none.
const NamedPlan* lowered_plan(ir::Opcode opcode);
// Plans the node as one of another op that has an expansion. Its arguments are the first ones of the node.
Status plan_as(OpPlanner& planner, ir::Opcode opcode);
// Adds the steps of another op that has an expansion, on tensors of the plan. Missing arguments, and results that are
// not computed, are none.
using OpArgument = std::variant<std::monostate, OpTensor, std::vector<int64_t>, int64_t, double, bool>;
Status plan_op(OpPlanner& planner, ir::Opcode opcode, const std::vector<OpArgument>& args,
               const std::vector<std::optional<OpTensor>>& results);

// Makes the first result, whose sizes the client may not know although they do not depend on data. `make` adds the
// steps that write its contiguous elements.
using MakeResult = std::function<void(std::vector<OpStep>* steps, Location to)>;
Status make_result(OpPlanner& planner, ir::DType dtype, const std::vector<int64_t>& sizes, const MakeResult& make);

// `from` broadcast to the sizes of `to`, contiguous, converted to `dtype`. If `dim` is given, it is rolled along it by
// -`by`.
OpTensor broadcast_and_roll(OpPlanner& planner, const OpTensor& from, const OpTensor& to, ir::DType dtype,
                            std::optional<size_t> dim = std::nullopt, int64_t by = 0);

// Writes the number of elements that are not 0 as an i64.
Status count_nonzero(OpPlanner& planner, const OpTensor& tensor, Location out);

// A number argument as an element of a complex dtype, without dims. None: it is a tensor, or absent.
std::optional<OpTensor> complex_number(OpPlanner& planner, std::string_view name, ir::DType dtype);
// The absolute values of complex numbers, as a real tensor.
OpTensor absolute_values(OpPlanner& planner, const OpTensor& tensor);

// cumsum, of real or complex numbers.
Status plan_running_sum(OpPlanner& planner);

// Norms over some dims, of floats or complex numbers.
Status norm_over(OpPlanner& planner, const OpTensor& from, const std::vector<int64_t>& dims, double p,
                 const OpTensor& to);

// Reduces all elements of a tensor to one.
enum class ReduceAll : uint8_t { kSum, kMean, kMax, kMin };
Status reduce_all(OpPlanner& planner, ReduceAll how, const OpTensor& from, const OpTensor& to);

// Whether each element is a member of a contiguous tensor of the same dtype. There are as many elements as `to` has.
Status search_members(OpPlanner& planner, Location elements, const OpTensor& to, const OpTensor& members, bool inverts);

// Sorts rows of u64 keys, overwriting `keys`. Returns where the sorted keys and their original positions (u32) are.
struct Sorted {
  Location keys, positions;
};
Sorted sort_rows(OpPlanner& planner, Location keys, int64_t rows, int64_t length);
// The same for a tensor's elements along a dim.
Status sort_tensor(OpPlanner& planner, const OpTensor& tensor, Location packed, const OuterLengthInner& dims,
                   bool descending, Sorted* sorted);

// x[mask], whose size depends on data.
Status plan_index_by_mask(OpPlanner& planner);

}  // namespace torch_remote::worker::cuda
