#include <algorithm>
#include <unordered_map>
#include <vector>

#include "passes/pass.h"
#include "passes/rewrite.h"

// cse: removes the second of two equal pure ops on equal values.
//
// The pass numbers values over the nodes in order. An operand's number consists of its view and the number of earlier
// writes to its buffer. So memory counts as equal, too, if nothing writes it in between. Results must be written_once
// and have the same layout. If the removed value survives and the kept one does not, the kept value moves to the
// survivor's buffer. If both survive, the client has two buffers, and both ops stay.
namespace torch_remote::passes {
namespace {

using ir::Arg;
using ir::ArgTag;
using ir::Graph;
using ir::kNoBuffer;
using ir::Node;
using ir::Sym;
using ir::View;

using Key = std::vector<uint32_t>;

class ValueNumbering {
 public:
  explicit ValueNumbering(Graph& graph)
      : graph_(graph),
        writes_(graph.buffers.size()),
        target_(graph.buffers.size()),
        survivor_(graph.buffers.size(), kNoBuffer) {
    for (uint32_t i = 0; i < target_.size(); ++i) {
      target_[i] = i;
      if (graph.buffers[i].survives) survivor_[i] = i;
    }
  }

  void run() {
    std::vector<bool> gone(graph_.nodes.size());
    bool any = false;
    for (uint32_t i = 0; i < graph_.nodes.size(); ++i) {
      const Node& node = graph_.nodes[i];
      if (mergeable(node)) {
        make_key(node);
        const auto [found, added] = nodes_.try_emplace(key_, i);
        if (!added && merge(graph_.nodes[found->second], node)) {
          gone[i] = true;
          any = true;
          continue;
        }
      }
      ir::for_each_view(node, [&](uint32_t view, bool writes) {
        if (writes) ++writes_[graph_.views[view].buffer];
      });
    }
    if (any) rewrite(gone);
  }

 private:
  bool mergeable(const Node& node) const {
    const uint32_t flags = ir::op_desc(node.opcode).flags;
    // The client waits for each host result.
    if ((flags & ir::kOpPure) == 0 || (flags & ir::kOpHostResult) != 0) return false;
    bool any = false;
    for (const Arg& result : node.results) {
      if (!mergeable_result(result)) return false;
      any |= result.tag != ArgTag::kNone;
    }
    return any;
  }

  bool mergeable_result(const Arg& result) const {
    if (result.tag == ArgTag::kView) {
      const View& view = graph_.views[result.a];
      return !view.dynamic && graph_.buffers[view.buffer].written_once;
    }
    return std::ranges::all_of(result.items, [&](const Arg& item) { return mergeable_result(item); });
  }

  // -- keys ----------------------------------------------------------------------------------------------------------

  void make_key(const Node& node) {
    key_.clear();
    key_.push_back(node.opcode);
    key_.push_back(node.in_place);
    const bool exchange = !node.in_place && (ir::op_desc(node.opcode).flags & ir::kOpCommutative) != 0 &&
                          node.args.size() >= 2 && node.args[0].tag == ArgTag::kView &&
                          node.args[1].tag == ArgTag::kView && number(node.args[1].a) < number(node.args[0].a);
    for (size_t i = 0; i < node.args.size(); ++i) add(node.args[exchange && i < 2 ? 1 - i : i]);
    for (const Arg& result : node.results) add_result(result);
  }

  void add(const Arg& arg) {
    key_.push_back(static_cast<uint32_t>(arg.tag));
    switch (arg.tag) {
      case ArgTag::kView:
        key_.push_back(number(arg.a));
        key_.push_back(writes_[target_[graph_.views[arg.a].buffer]]);
        break;
      case ArgTag::kList:
        key_.push_back(static_cast<uint32_t>(arg.items.size()));
        for (const Arg& item : arg.items) add(item);
        break;
      case ArgTag::kString:
        key_.push_back(static_cast<uint32_t>(arg.text.size()));
        for (const char c : arg.text) key_.push_back(static_cast<unsigned char>(c));
        break;
      default:
        key_.push_back(arg.a);
        key_.push_back(arg.b);
    }
  }

  void add_result(const Arg& result) {
    key_.push_back(static_cast<uint32_t>(result.tag));
    if (result.tag == ArgTag::kView) {
      add_geometry(graph_.views[result.a]);
    } else {
      key_.push_back(static_cast<uint32_t>(result.items.size()));
      for (const Arg& item : result.items) add_result(item);
    }
  }

  void add_geometry(const View& view) {
    key_.push_back(static_cast<uint32_t>(view.dtype) | static_cast<uint32_t>(view.sizes.size()) << 8);
    key_.insert(key_.end(), view.sizes.begin(), view.sizes.end());
    key_.insert(key_.end(), view.strides.begin(), view.strides.end());
    key_.push_back(view.offset);
  }

  // Equal views of equal buffers have the same number. A view is numbered only after it is known whether its buffer is
  // merged.
  uint32_t number(uint32_t view) {
    if (view_numbers_.size() < graph_.views.size()) view_numbers_.resize(graph_.views.size());
    uint32_t& known = view_numbers_[view];
    if (known != 0) return known;
    std::swap(key_, outer_key_);
    key_.assign(1, target_[graph_.views[view].buffer]);
    add_geometry(graph_.views[view]);
    known = views_.try_emplace(key_, static_cast<uint32_t>(views_.size()) + 1).first->second;
    std::swap(key_, outer_key_);
    return known;
  }

  // -- merging -------------------------------------------------------------------------------------------------------

  template <typename F>
  void for_each_pair(const Arg& kept, const Arg& gone, F&& f) {
    if (kept.tag == ArgTag::kView) f(target_[graph_.views[kept.a].buffer], graph_.views[gone.a].buffer);
    for (size_t i = 0; i < kept.items.size(); ++i) for_each_pair(kept.items[i], gone.items[i], f);
  }

  bool merge(const Node& kept, const Node& gone) {
    bool both_survive = false;
    for (size_t i = 0; i < kept.results.size(); ++i) {
      for_each_pair(kept.results[i], gone.results[i], [&](uint32_t keep, uint32_t drop) {
        both_survive |= survivor_[keep] != kNoBuffer && graph_.buffers[drop].survives;
      });
    }
    if (both_survive) return false;
    for (size_t i = 0; i < kept.results.size(); ++i) {
      for_each_pair(kept.results[i], gone.results[i], [&](uint32_t keep, uint32_t drop) {
        target_[drop] = keep;
        if (graph_.buffers[drop].survives) survivor_[keep] = drop;
      });
    }
    return true;
  }

  void rewrite(const std::vector<bool>& gone) {
    graph_.drop_plan();
    std::vector<bool> used(graph_.buffers.size());
    for (View& view : graph_.views) {
      const uint32_t kept = target_[view.buffer];
      const bool merged = graph_.buffers[kept].written_once && survivor_[kept] != kNoBuffer;
      view.buffer = merged ? survivor_[kept] : kept;
    }
    size_t next = 0;
    for (size_t i = 0; i < gone.size(); ++i) {
      if (gone[i]) continue;
      if (next != i) graph_.nodes[next] = std::move(graph_.nodes[i]);
      ++next;
    }
    graph_.nodes.resize(next);
    for (const Node& node : graph_.nodes) {
      ir::for_each_view(node, [&](uint32_t view, bool) { used[graph_.views[view].buffer] = true; });
    }
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) graph_.buffers[i].written_once = false;
    }
  }

  Graph& graph_;
  std::vector<uint32_t> writes_;    // per buffer: writes so far
  std::vector<uint32_t> target_;    // per buffer: the buffer that has its value
  std::vector<uint32_t> survivor_;  // per kept buffer: the surviving buffer that has its value
  std::vector<uint32_t> view_numbers_;
  std::unordered_map<Key, uint32_t, WordsHash> nodes_;
  std::unordered_map<Key, uint32_t, WordsHash> views_;
  Key key_;
  Key outer_key_;
};

}  // namespace

Status cse(Graph& graph, const PassContext&) {
  graph.drop_groups();
  ValueNumbering(graph).run();
  return {};
}

}  // namespace torch_remote::passes
