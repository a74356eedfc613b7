#include "tools/reduce/resize.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include "tools/runs/snapshots.h"

namespace torch_remote::tools::reduce {
namespace {

// Strides of a dense view with new sizes, with dims in the old order. Returns false if the old strides are not dense.
// Dims of stride 0 (expanded) stay so.
bool dense_strides(std::span<const int64_t> old_sizes, std::span<const int64_t> old_strides,
                   std::span<const int64_t> sizes, std::vector<int64_t>* strides) {
  std::vector<size_t> dims(sizes.size());
  std::iota(dims.begin(), dims.end(), 0);
  std::ranges::sort(dims, {}, [&](size_t d) { return std::pair(old_strides[d], -static_cast<int64_t>(d)); });
  strides->assign(sizes.size(), 0);
  int64_t expected = 1, next = 1;
  for (const size_t d : dims) {
    if (old_strides[d] == 0) continue;
    if (old_sizes[d] != 1 && old_strides[d] != expected) return false;
    (*strides)[d] = next;
    expected *= old_sizes[d];
    next *= sizes[d];
  }
  return true;
}

// Number of elements that a view spans.
int64_t extent(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

struct Layout {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

Layout layout_of(const ir::View& view, std::span<const int64_t> values) {
  Layout result;
  for (const ir::Sym symbol : view.sizes) result.sizes.push_back(values[symbol]);
  for (const ir::Sym symbol : view.strides) result.strides.push_back(values[symbol]);
  result.offset = values[view.offset];
  return result;
}

class Resizer {
 public:
  Resizer(const RunCase& run, int64_t from, int64_t to) : run_(run), from_(from), to_(to), params_(run.params) {}

  bool run(RunCase* changed) {
    const ir::Graph& graph = run_.graph;
    if (!ir::evaluate(graph, run_.params.data(), &before_)) return false;
    std::set<ir::Sym> sized;
    for (const ir::View& view : graph.views) {
      for (const ir::Sym symbol : view.sizes) sized.insert(symbol);
    }
    for (const ir::Node& node : graph.nodes) {
      for (const ir::Arg& arg : node.args) collect_ints(arg, sized);
    }
    for (const ir::Sym symbol : sized) {
      if (symbol < graph.params && params_[symbol] == from_) params_[symbol] = to_;
    }
    if (!ir::evaluate(graph, params_.data(), &after_)) return false;
    find_whole_views();
    for (const ir::View& view : graph.views) {
      if (!view.dynamic && !set_strides(view)) return false;
    }
    if (!ir::evaluate(graph, params_.data(), &after_)) return false;
    *changed = {graph, {}, {}, {}, run_.math_modes};
    set_bytes(&changed->inputs);
    changed->params = params_;
    return true;
  }

 private:
  void collect_ints(const ir::Arg& arg, std::set<ir::Sym>& symbols) {
    if (arg.tag == ir::ArgTag::kInt) symbols.insert(arg.a);
    for (const ir::Arg& item : arg.items) collect_ints(item, symbols);
  }

  std::vector<int64_t> sizes_after(const ir::View& view) const {
    std::vector<int64_t> sizes;
    for (const ir::Sym symbol : view.sizes) sizes.push_back(after_[symbol]);
    return sizes;
  }

  // Finds the largest dense view at the beginning of each buffer. The buffer's other views are located relative to it.
  void find_whole_views() {
    whole_.assign(run_.graph.buffers.size(), nullptr);
    std::vector<int64_t> strides;
    for (const ir::View& view : run_.graph.views) {
      if (view.dynamic) continue;
      const Layout old = layout_of(view, before_);
      const ir::View*& known = whole_[view.buffer];
      if (old.offset != 0 || !dense_strides(old.sizes, old.strides, old.sizes, &strides)) continue;
      if (!known || view_bytes(view, before_) > view_bytes(*known, before_)) known = &view;
    }
  }

  bool set_strides(const ir::View& view) {
    const Layout old = layout_of(view, before_);
    Layout made;
    made.sizes = sizes_after(view);
    const ir::View* whole = whole_[view.buffer];
    // the view is the whole view itself
    if (whole && view_bytes(view, before_) == view_bytes(*whole, before_)) whole = nullptr;
    if (whole && sizes_after(*whole) != layout_of(*whole, before_).sizes) {
      if (whole->dtype != view.dtype || !place_in(*whole, old, &made)) return false;
    } else if (made.sizes == old.sizes) {
      return true;
    } else if (old.offset != 0 || !dense_strides(old.sizes, old.strides, made.sizes, &made.strides)) {
      // The view is a part of a buffer whose size does not change, so it still fits.
      if (whole) return true;
      if (!is_only_view(view)) return false;
      pack(old, &made);
    }
    for (size_t d = 0; d < made.strides.size(); ++d) set(view.strides[d], made.strides[d]);
    if (!made.strides.empty()) set(view.offset, made.offset);
    return true;
  }

  void set(ir::Sym symbol, int64_t value) {
    if (symbol < params_.size()) params_[symbol] = value;
  }

  // Computes the strides and offset of a part of a dense view whose sizes change. Each stride is a step along one dim
  // of that view. The offset is a position in it, which is moved if too few elements follow it.
  bool place_in(const ir::View& whole, const Layout& old, Layout* made) const {
    const Layout from = layout_of(whole, before_);
    const std::vector<int64_t> sizes = sizes_after(whole);
    std::vector<int64_t> strides;
    if (!dense_strides(from.sizes, from.strides, sizes, &strides)) return false;
    std::vector<size_t> dims;  // by descending stride
    for (size_t d = 0; d < sizes.size(); ++d) {
      if (from.strides[d] != 0 && from.sizes[d] != 1) dims.push_back(d);
    }
    std::ranges::sort(dims, std::greater<>(), [&](size_t d) { return from.strides[d]; });
    std::vector<int64_t> reached(sizes.size(), 0);  // per dim of `whole`
    made->strides.assign(old.strides.size(), 0);
    for (size_t d = 0; d < old.strides.size(); ++d) {
      if (old.strides[d] == 0) continue;
      const auto dim = std::ranges::find_if(dims, [&](size_t w) { return old.strides[d] % from.strides[w] == 0; });
      if (dim == dims.end()) return false;
      const int64_t step = old.strides[d] / from.strides[*dim];
      made->strides[d] = step * strides[*dim];
      reached[*dim] += std::max<int64_t>(made->sizes[d] - 1, 0) * step;
    }
    int64_t rest = old.offset;
    for (const size_t d : dims) {
      const int64_t room = sizes[d] - 1 - reached[d];
      if (room < 0) return false;
      made->offset += std::min(rest / from.strides[d], room) * strides[d];
      rest %= from.strides[d];
    }
    return true;
  }

  // Whether the view's buffer is an input and all of its views equal this one.
  bool is_only_view(const ir::View& view) const {
    const auto same = [&](const ir::View& other) {
      return other.buffer != view.buffer || (other.dtype == view.dtype && other.sizes == view.sizes &&
                                             other.strides == view.strides && other.offset == view.offset);
    };
    return run_.graph.buffers[view.buffer].kind == ir::BufferKind::kInput &&
           std::ranges::all_of(run_.graph.views, same);
  }

  // Makes the view dense, with dims in the old order.
  static void pack(const Layout& old, Layout* made) {
    std::vector<size_t> dims(old.sizes.size());
    std::iota(dims.begin(), dims.end(), 0);
    std::ranges::sort(dims, {}, [&](size_t d) { return std::pair(old.strides[d], -static_cast<int64_t>(d)); });
    made->strides.assign(dims.size(), 0);
    int64_t next = 1;
    for (const size_t d : dims) {
      if (old.strides[d] == 0) continue;
      made->strides[d] = next;
      next *= made->sizes[d];
    }
  }

  // Fresh buffers get the bytes that their views span; inputs get the elements of their largest view.
  void set_bytes(std::vector<Bytes>* inputs) {
    const ir::Graph& graph = run_.graph;
    size_t input = 0;
    for (uint32_t b = 0; b < graph.buffers.size(); ++b) {
      uint64_t bytes = 0;
      const ir::View* largest = nullptr;
      for (const ir::View& view : graph.views) {
        if (view.buffer != b || view.dynamic) continue;
        const Layout now = layout_of(view, after_);
        const uint64_t reached =
            static_cast<uint64_t>(now.offset + extent(now.sizes, now.strides)) * ir::item_size(view.dtype);
        bytes = std::max(bytes, reached);
        if (!largest || view_bytes(view, before_) > view_bytes(*largest, before_)) largest = &view;
      }
      const ir::Sym nbytes = graph.buffers[b].nbytes;
      if (graph.buffers[b].kind == ir::BufferKind::kInput) {
        const Bytes& old = run_.inputs[input++];
        inputs->push_back(largest ? moved(*largest, old, bytes) : old);
      } else if (nbytes != ir::kNoSym && nbytes < params_.size()) {
        params_[nbytes] = static_cast<int64_t>(bytes);
      }
    }
  }

  // Copies the view's remaining elements to their new positions.
  Bytes moved(const ir::View& view, const Bytes& old, uint64_t nbytes) {
    const Layout from = layout_of(view, before_), to = layout_of(view, after_);
    if (from.sizes == to.sizes) return old;
    const int64_t item = ir::item_size(view.dtype);
    Bytes result(nbytes);
    std::function<void(size_t, int64_t, int64_t)> copy = [&](size_t d, int64_t source, int64_t target) {
      if (d == to.sizes.size()) {
        if ((source + 1) * item <= static_cast<int64_t>(old.size()) &&
            (target + 1) * item <= static_cast<int64_t>(nbytes)) {
          std::memcpy(result.data() + target * item, old.data() + source * item, static_cast<size_t>(item));
        }
        return;
      }
      for (int64_t i = 0; i < to.sizes[d]; ++i) copy(d + 1, source + i * from.strides[d], target + i * to.strides[d]);
    };
    copy(0, from.offset, to.offset);
    return result;
  }

  const RunCase& run_;
  const int64_t from_, to_;
  std::vector<int64_t> params_;
  std::vector<int64_t> before_, after_;  // values of the symbols
  std::vector<const ir::View*> whole_;   // by buffer; null: none
};

}  // namespace

std::vector<int64_t> sizes_of(const RunCase& run) {
  std::set<int64_t, std::greater<>> sizes;
  for (const ir::View& view : run.graph.views) {
    for (const ir::Sym symbol : view.sizes) {
      if (symbol < run.graph.params) sizes.insert(run.params[symbol]);
    }
  }
  return {sizes.begin(), sizes.end()};
}

bool with_size(const RunCase& run, int64_t from, int64_t to, RunCase* changed) {
  return Resizer(run, from, to).run(changed);
}

}  // namespace torch_remote::tools::reduce
