#include <algorithm>
#include <numeric>
#include <optional>

#include "ir/fusion/form_builder.h"

// Forms of nodes that read and write at indices.
namespace torch_remote::ir {
namespace {

class IndexForms : FormBuilder {
 public:
  IndexForms(const Graph& graph, const Node& node, KernelForm* form) : FormBuilder(graph, node, form) {}

  bool find() {
    switch (form_.expansion) {
      case Expansion::kEmbedding:
        return embedding();
      case Expansion::kEmbeddingBackward:
        return embedding_backward();
      case Expansion::kIndexSelect:
        return index_select();
      case Expansion::kGather:
        return gather();
      case Expansion::kTake:
        return take();
      case Expansion::kIndex:
        return index();
      case Expansion::kIndexAdd:
      case Expansion::kIndexCopy:
        return slices();
      case Expansion::kIndexPut:
        return index_put();
      default:
        return scatter();
    }
  }

 private:
  bool embedding() {
    if (!reads_index("indices", AxisMapping::kFirst) || !result(0, AxisMapping::kLast) || !space_of_result())
      return false;
    return rank_of(form_.space) != 0 && reads_at("weight", {kByIndex, static_cast<uint32_t>(rank_of(form_.space)) - 1});
  }

  // Reads slices along a dim at the positions that an index gives.
  bool index_select() {
    const std::optional<uint32_t> dim = dim_of("self");
    if (!dim.has_value() || !result(0, AxisMapping::kLast) || !space_of_result() || !is_index("index")) return false;
    std::vector<uint32_t> axes = axes_but("self", *dim);
    if (axes.size() != rank_of(form_.space)) return false;
    const uint32_t index = argument("index")->a;
    reads_index(*argument("index"), std::vector<uint32_t>(rank_of(index), *dim));
    return rank_of(index) <= 1 && reads_at("self", std::move(axes));
  }

  // Reads, at each point, the element that the point's own index gives.
  bool gather() {
    const std::optional<uint32_t> dim = dim_of("self");
    if (!dim.has_value() || !result(0, AxisMapping::kLast) || !space_of_result() || !is_index("index")) return false;
    std::vector<uint32_t> axes = axes_but("self", *dim);
    if (axes.size() != rank_of(form_.space) || rank_of(argument("index")->a) != axes.size()) return false;
    return reads_index("index", AxisMapping::kLast) && reads_at("self", std::move(axes));
  }

  // Reads elements by their row-major number.
  bool take() {
    const Arg* self = argument("self");
    if (self->tag != ArgTag::kView || rank_of(self->a) == 0 || rank_of(self->a) > kMaxIndexedDims) return false;
    return result(0, AxisMapping::kLast) && space_of_result() && reads_index("index", AxisMapping::kLast) &&
           reads_at("self", std::vector<uint32_t>(rank_of(self->a), kByIndex));
  }

  bool index() {
    std::vector<uint32_t> axes;
    return result(0, AxisMapping::kLast) && space_of_result() && reads_indices(rank_of(form_.space), &axes) &&
           reads_at("self", std::move(axes));
  }

  // self[i, :, j]: the broadcast dims of the indices stand where the first index stood. They come first if a dim
  // without an index is between two indices. `axes`: the axis of each of self's dims, in a space of this rank.
  bool reads_indices(size_t space_rank, std::vector<uint32_t>* axes) {
    const Arg* self = argument("self");
    const Arg* list = argument("indices");
    if (self->tag != ArgTag::kView || list->tag != ArgTag::kList) return false;
    const size_t rank = rank_of(self->a);
    size_t count = 0, first = rank, last = 0, wide = 0;
    if (list->items.size() > rank) return false;
    for (size_t d = 0; d < list->items.size(); ++d) {
      const Arg& item = list->items[d];
      if (item.tag == ArgTag::kNone) continue;
      if (!is_index(item)) return false;
      first = std::min(first, d);
      last = d;
      wide = std::max(wide, rank_of(item.a));
      ++count;
    }
    if (count == 0 || count > kMaxIndexedDims || space_rank != rank - count + wide) return false;
    const size_t begin = last - first + 1 == count ? first : 0;
    for (size_t d = 0; d < rank; ++d) {
      if (d < list->items.size() && list->items[d].tag != ArgTag::kNone) {
        const size_t own = rank_of(list->items[d].a);
        std::vector<uint32_t> along(own);
        std::iota(along.begin(), along.end(), static_cast<uint32_t>(begin + wide - own));
        reads_index(list->items[d], std::move(along));
        axes->push_back(kByIndex);
        continue;
      }
      const size_t before = d - static_cast<size_t>(std::ranges::count(*axes, kByIndex));
      axes->push_back(static_cast<uint32_t>(before < begin ? before : before + wide));
    }
    return true;
  }

  // Adds each row to the row that its index names.
  bool embedding_backward() {
    if (constant("scale_grad_by_freq").value_or(1) != 0 || !reads("grad_output") ||
        !reads_index("indices", AxisMapping::kFirst) || !space("grad_output") || !is_float_argument("grad_output") ||
        node_.results[0].tag != ArgTag::kView || rank_of(form_.space) == 0) {
      return false;
    }
    if (rank_of(node_.results[0].a) != 2) return false;  // a program may declare any rank
    const auto last = static_cast<uint32_t>(rank_of(form_.space)) - 1;
    writes_at(node_.results[0].a, {kByIndex, last});
    form_.parts.back().reads = false;
    return true;
  }

  // index_add_, index_copy_: writes slices of `source` where an index says.
  bool slices() {
    const std::optional<uint32_t> dim = dim_of("self");
    if (form_.expansion == Expansion::kIndexAdd && is_bool("self")) return false;
    if (!dim.has_value() || !is_index("index") || !same_dtype("self", "source") || !reads("source") ||
        !space("source") || rank_of(argument("self")->a) != rank_of(form_.space)) {
      return false;
    }
    const Arg& index = *argument("index");
    reads_index(index, std::vector<uint32_t>(rank_of(index.a), *dim));
    return rank_of(index.a) <= 1 && writes_at("self", axes_but("self", *dim));
  }

  // scatter_, scatter_add_: writes elements of `src`, or a number, each where its own index says.
  bool scatter() {
    const std::optional<uint32_t> dim = dim_of("self");
    if (form_.expansion == Expansion::kScatterAdd && is_bool("self")) return false;
    if (!dim.has_value() || !reads_index("index", AxisMapping::kLast) || !space("index")) return false;
    const size_t rank = rank_of(form_.space);
    std::vector<uint32_t> all(rank);
    std::iota(all.begin(), all.end(), 0);
    if (rank_of(argument("self")->a) != rank) return false;
    if (argument("src") != nullptr && (!same_dtype("self", "src") || !reads_at("src", std::move(all)))) return false;
    return writes_at("self", axes_but("self", *dim));
  }

  // self[i, :, j] = values, where `values` covers the whole space.
  bool index_put() {
    if (constant("accumulate").value_or(1) != 0 && is_bool("self")) return false;
    if (!constant("accumulate").has_value() || !same_dtype("self", "values") || !space("values")) return false;
    std::vector<uint32_t> axes;
    if (!reads_indices(rank_of(form_.space), &axes) || !is_broadcast_by_nothing(axes)) return false;
    return reads("values") && writes_at("self", std::move(axes));
  }

  // Whether self and all indices have size 1 wherever the space has size 1.
  bool is_broadcast_by_nothing(const std::vector<uint32_t>& axes) const {
    const View& space = graph_.views[form_.space];
    const auto fits = [&](uint32_t view, size_t dim, uint32_t axis) {
      return !is_one(space.sizes[axis]) || is_one(graph_.views[view].sizes[dim]);
    };
    for (size_t d = 0; d < axes.size(); ++d) {
      if (axes[d] != kByIndex && !fits(argument("self")->a, d, axes[d])) return false;
    }
    return std::ranges::all_of(form_.parts, [&](const Part& part) {
      for (size_t d = 0; d < part.axes.size(); ++d) {
        if (part.is_index && !fits(part.view, d, part.axes[d])) return false;
      }
      return true;
    });
  }

  // Reads a tensor whose dims map to these axes, or are chosen by indices.
  bool reads_at(std::string_view name, std::vector<uint32_t> axes) {
    const Arg* arg = argument(name);
    if (arg == nullptr || arg->tag != ArgTag::kView || axes.size() != rank_of(arg->a)) return false;
    form_.parts.push_back({arg->a, AxisMapping::kNamed, true, false, false, false, std::move(axes)});
    return true;
  }

  // Maps each dim of the tensor to its own axis, but `dim` to an index.
  std::vector<uint32_t> axes_but(std::string_view name, uint32_t dim) const {
    std::vector<uint32_t> axes(rank_of(argument(name)->a));
    std::iota(axes.begin(), axes.end(), 0);
    axes[dim] = kByIndex;
    return axes;
  }

  // Writes row by row, because several rows may write one element.
  bool writes_at(std::string_view name, std::vector<uint32_t> axes) {
    const Arg* arg = argument(name);
    if (arg == nullptr || arg->tag != ArgTag::kView || axes.size() != rank_of(arg->a)) return false;
    writes_at(arg->a, std::move(axes));
    return true;
  }
  void writes_at(uint32_t view, std::vector<uint32_t> axes) {
    form_.parts.push_back({view, AxisMapping::kNamed, true, true, false, true, std::move(axes)});
  }

  bool is_bool(std::string_view name) const {
    const Arg* arg = argument(name);
    return arg != nullptr && arg->tag == ArgTag::kView && graph_.views[arg->a].dtype == DType::kBool;
  }

  bool same_dtype(std::string_view x, std::string_view y) const {
    const Arg *a = argument(x), *b = argument(y);
    return a != nullptr && b != nullptr && a->tag == ArgTag::kView && b->tag == ArgTag::kView &&
           graph_.views[a->a].dtype == graph_.views[b->a].dtype;
  }

  // The argument `dim`, as a non-negative dim of this tensor.
  std::optional<uint32_t> dim_of(std::string_view name) const {
    const Arg* arg = argument(name);
    std::optional<int64_t> dim = constant("dim");
    if (arg == nullptr || arg->tag != ArgTag::kView || !dim.has_value()) return std::nullopt;
    const auto rank = static_cast<int64_t>(rank_of(arg->a));
    if (*dim < 0) *dim += rank;
    return *dim >= 0 && *dim < rank ? std::optional(static_cast<uint32_t>(*dim)) : std::nullopt;
  }
};

}  // namespace

bool find_index_form(const Graph& graph, const Node& node, KernelForm* form) {
  return IndexForms(graph, node, form).find();
}

}  // namespace torch_remote::ir
