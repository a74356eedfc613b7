#include "worker/device/strided_copy.h"

#include <algorithm>
#include <cstring>

namespace torch_remote::worker {
namespace {

constexpr int64_t kTile = 64;             // Elements per side: both sides of a tile stay in the L1 cache.
constexpr int64_t kGrainBytes = 1 << 18;  // Minimum work of a thread.

struct Dim {
  int64_t size, from, to;  // Strides in elements.
};

// The copy, in as few dims as possible: rows along `row`. If the elements of a row are farther apart in the source than
// those along `column`, tiles of both are copied. The remaining dims are `outer`.
struct Plan {
  std::vector<Dim> outer;
  Dim column{1, 0, 0}, row{1, 1, 1};
  int64_t outer_count = 1;
  int64_t tiles() const { return (column.size + kTile - 1) / kTile; }
};

Plan make_plan(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  Plan plan;
  std::vector<Dim>& dims = plan.outer;
  int64_t packed = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (!dims.empty() && strides[i] == dims.back().from * dims.back().size) {
      dims.back().size *= sizes[i];
    } else {
      dims.push_back({sizes[i], strides[i], packed});
    }
    packed *= sizes[i];
  }
  std::reverse(dims.begin(), dims.end());
  if (dims.empty()) return plan;
  plan.row = dims.back();
  dims.pop_back();
  const auto nearest =
      std::min_element(dims.begin(), dims.end(), [](const Dim& a, const Dim& b) { return a.from < b.from; });
  if (nearest != dims.end() && nearest->from < plan.row.from) {
    plan.column = *nearest;
    dims.erase(nearest);
  }
  for (const Dim& dim : dims) plan.outer_count *= dim.size;
  return plan;
}

// 16 bytes that are copied as a whole.
struct Wide {
  uint64_t words[2];
};

template <typename T>
void copy_tile(const Plan& plan, const std::byte* from, std::byte* to, int64_t first, int64_t last) {
  const Dim &column = plan.column, &row = plan.row;
  if (row.from == 1) {
    for (int64_t r = first; r < last; ++r) {
      std::memcpy(to + r * column.to * sizeof(T), from + r * column.from * sizeof(T), row.size * sizeof(T));
    }
    return;
  }
  for (int64_t begin = 0; begin < row.size; begin += kTile) {
    const int64_t end = std::min(begin + kTile, row.size);
    for (int64_t r = first; r < last; ++r) {
      const std::byte* source = from + r * column.from * sizeof(T);
      std::byte* target = to + r * column.to * sizeof(T);
      for (int64_t c = begin; c < end; ++c) {
        T element;
        std::memcpy(&element, source + c * row.from * sizeof(T), sizeof(T));
        std::memcpy(target + c * sizeof(T), &element, sizeof(T));
      }
    }
  }
}

// Copies units [begin, end). A unit is one tile of the columns, for one index of the outer dims.
template <typename T>
void copy_units(const Plan& plan, const std::byte* from, std::byte* to, int64_t begin, int64_t end) {
  const int64_t tiles = plan.tiles();
  std::vector<int64_t> at(plan.outer.size());
  int64_t rest = begin / tiles;
  for (size_t i = at.size(); i-- > 0;) {
    at[i] = rest % plan.outer[i].size;
    rest /= plan.outer[i].size;
    from += at[i] * plan.outer[i].from * sizeof(T);
    to += at[i] * plan.outer[i].to * sizeof(T);
  }
  int64_t tile = begin % tiles;
  for (int64_t unit = begin; unit < end; ++unit) {
    copy_tile<T>(plan, from, to, tile * kTile, std::min((tile + 1) * kTile, plan.column.size));
    if (++tile < tiles) continue;
    tile = 0;
    for (size_t i = at.size(); i-- > 0;) {
      const Dim& dim = plan.outer[i];
      from += dim.from * sizeof(T);
      to += dim.to * sizeof(T);
      if (++at[i] < dim.size) break;
      at[i] = 0;
      from -= dim.size * dim.from * sizeof(T);
      to -= dim.size * dim.to * sizeof(T);
    }
  }
}

template <typename T>
void copy_all(const Plan& plan, const void* source, std::byte* destination, const ParallelFor& parallel) {
  const auto* from = static_cast<const std::byte*>(source);
  const int64_t units = plan.outer_count * plan.tiles();
  const int64_t unit_bytes = std::min(plan.column.size, kTile) * plan.row.size * static_cast<int64_t>(sizeof(T));
  const int64_t grain = std::max<int64_t>(kGrainBytes / std::max<int64_t>(unit_bytes, 1), 1);
  const auto body = [&](int64_t begin, int64_t end) { copy_units<T>(plan, from, destination, begin, end); };
  if (parallel && units >= 2 * grain) {
    parallel(units, grain, body);
  } else {
    body(0, units);
  }
}

}  // namespace

void copy_strided(const void* source, std::byte* destination, uint32_t item_size, std::span<const int64_t> sizes,
                  std::span<const int64_t> strides, const ParallelFor& parallel) {
  if (std::ranges::find(sizes, 0) != sizes.end()) return;
  if (sizes.empty() || (sizes.size() == 1 && strides[0] == 1)) {
    std::memcpy(destination, source, item_size * static_cast<size_t>(sizes.empty() ? 1 : sizes[0]));
    return;
  }
  const Plan plan = make_plan(sizes, strides);
  switch (item_size) {
    case 1:
      return copy_all<uint8_t>(plan, source, destination, parallel);
    case 2:
      return copy_all<uint16_t>(plan, source, destination, parallel);
    case 4:
      return copy_all<uint32_t>(plan, source, destination, parallel);
    case 8:
      return copy_all<uint64_t>(plan, source, destination, parallel);
    default:
      return copy_all<Wide>(plan, source, destination, parallel);
  }
}

}  // namespace torch_remote::worker
