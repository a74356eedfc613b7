#include "frontend/shapes/metas/structured_metas.h"

#include <unordered_map>

#include "frontend/shapes/metas/shards.h"

namespace torch_remote::frontend {
namespace {

using Table = std::unordered_map<std::string_view, c10::KernelFunction>;

Table* make_table() {
  auto* table = new Table;
  for (auto* shard : {metas::shard_0, metas::shard_1, metas::shard_2, metas::shard_3, metas::shard_4, metas::shard_5}) {
    for (metas::StructuredMeta& meta : shard()) table->emplace(meta.name, std::move(meta.kernel));
  }
  return table;
}

}  // namespace

const c10::KernelFunction* find_structured_meta(const c10::OperatorName& name) {
  static const Table* table = make_table();  // never freed, because kernels may run during exit
  const auto found = table->find(c10::toString(name));
  return found == table->end() ? nullptr : &found->second;
}

}  // namespace torch_remote::frontend
