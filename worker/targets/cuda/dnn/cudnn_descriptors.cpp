#include "worker/targets/cuda/dnn/cudnn_descriptors.h"

#include <algorithm>

namespace torch_remote::worker::cuda::dnn {
namespace {

constexpr int64_t kMaxConfigs = 64;  // How many engine configs are requested.

}  // namespace

void destroy(const Table& table, std::vector<Descriptor>& made) {
  for (size_t i = made.size(); i-- > 0;) (void)table.descriptor_destroy(made[i]);
  made.clear();
}

Builder& Builder::make(DescriptorType kind) {
  current_ = nullptr;
  if (!status_.ok()) return *this;
  if (check(table_.descriptor_create(kind, &current_), "cudnnBackendCreateDescriptor")) keep_->push_back(current_);
  return *this;
}

Builder& Builder::set_all(Attribute attribute, AttributeType type, int64_t count, const void* values) {
  if (status_.ok()) {
    check(table_.set_attribute(current_, attribute, type, count, values), "cudnnBackendSetAttribute");
  }
  return *this;
}

Descriptor Builder::finish() {
  if (status_.ok()) check(table_.descriptor_finalize(current_), "cudnnBackendFinalize");
  return status_.ok() ? current_ : nullptr;
}

Descriptor Builder::tensor(int64_t id, Type type, const std::vector<int64_t>& sizes,
                           const std::vector<int64_t>& strides, std::optional<Attribute> flag, int64_t alignment) {
  make(DescriptorType::kTensor)
      .set_one(Attribute::kTensorType, AttributeType::kDataType, type)
      .set(Attribute::kTensorSizes, AttributeType::kInt64, sizes)
      .set(Attribute::kTensorStrides, AttributeType::kInt64, strides)
      .set_one(Attribute::kTensorId, AttributeType::kInt64, id)
      .set_one(Attribute::kTensorAlignment, AttributeType::kInt64, alignment);
  if (flag) set_one(*flag, AttributeType::kBool, true);
  return finish();
}

Descriptor Builder::graph(Handle handle, const std::vector<Descriptor>& operations) {
  return make(DescriptorType::kGraph)
      .set_one(Attribute::kGraphHandle, AttributeType::kHandle, handle)
      .set(Attribute::kGraphOperations, AttributeType::kDescriptor, operations)
      .finish();
}

bool Builder::check(Result result, const char* what) {
  if (status_.ok()) status_ = to_status(table_, result, what);
  return status_.ok();
}

std::vector<int64_t> image_strides(std::span<const int64_t> sizes, bool channels_last) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  const auto lay = [&](size_t d) {
    strides[d] = step;
    step *= sizes[d];
  };
  if (channels_last) lay(1);
  for (size_t d = sizes.size(); d-- > 2;) lay(d);
  if (!channels_last) lay(1);
  lay(0);
  return strides;
}

Status query_heuristics(const Table& table, Descriptor graph, HeuristicsMode mode, Temporary* made,
                        std::vector<Descriptor>* configs) {
  configs->clear();
  Builder builder(table, &made->made);
  builder.make(DescriptorType::kHeuristics)
      .set_one(Attribute::kHeuristicsGraph, AttributeType::kDescriptor, graph)
      .set_one(Attribute::kHeuristicsMode, AttributeType::kHeuristicsMode, mode);
  const Descriptor heuristics = builder.finish();
  configs->reserve(kMaxConfigs);
  for (int64_t i = 0; i < kMaxConfigs && builder.status().ok(); ++i) {
    builder.make(DescriptorType::kEngineConfig);
    configs->push_back(made->made.back());
  }
  if (!builder.status().ok()) return builder.status();
  int64_t count = 0;
  Status status = to_status(table,
                            table.get_attribute(heuristics, Attribute::kHeuristicsResults, AttributeType::kDescriptor,
                                                kMaxConfigs, &count, static_cast<void*>(configs->data())),
                            "cudnnBackendGetAttribute");
  configs->resize(status.ok() ? static_cast<size_t>(std::clamp<int64_t>(count, 0, kMaxConfigs)) : 0);
  return status;
}

bool find_notes(const Table& table, Descriptor config, std::vector<NumericalNote>* notes) {
  Temporary temporary(table);
  Descriptor engine = nullptr;
  if (table.descriptor_create(DescriptorType::kEngine, &engine) != Result::kSuccess) return false;
  temporary.made.push_back(engine);
  int64_t count = 0;
  if (table.get_attribute(config, Attribute::kConfigEngine, AttributeType::kDescriptor, 1, &count,
                          static_cast<void*>(&engine)) != Result::kSuccess) {
    return false;
  }
  notes->resize(kMaxNotes);
  if (table.get_attribute(engine, Attribute::kEngineNotes, AttributeType::kNote, kMaxNotes, &count, notes->data()) !=
      Result::kSuccess) {
    return false;
  }
  notes->resize(static_cast<size_t>(std::clamp<int64_t>(count, 0, kMaxNotes)));
  return true;
}

Status make_plan(const Table& table, Handle handle, Descriptor config, uint64_t most, std::vector<Descriptor>* made,
                 Descriptor* plan, uint64_t* workspace) {
  Builder builder(table, made);
  builder.make(DescriptorType::kPlan)
      .set_one(Attribute::kPlanHandle, AttributeType::kHandle, handle)
      .set_one(Attribute::kPlanConfig, AttributeType::kDescriptor, config);
  *plan = builder.finish();
  if (!builder.status().ok()) return builder.status();
  int64_t bytes = 0, one = 0;
  Status status =
      to_status(table, table.get_attribute(*plan, Attribute::kPlanWorkspace, AttributeType::kInt64, 1, &one, &bytes),
                "workspace");
  if (!status.ok()) return status;
  *workspace = static_cast<uint64_t>(bytes);
  if (*workspace <= most) return {};
  return {ErrorCode::kUnsupported, "cudnn: the plan needs " + std::to_string(bytes) + " bytes of workspace"};
}

Status execute(const Table& table, Handle handle, Descriptor plan, const std::vector<int64_t>& ids,
               const std::vector<DevicePointer>& addresses, DevicePointer workspace, Stream stream) {
  Temporary temporary(table);
  Builder builder(table, &temporary.made);
  builder.make(DescriptorType::kVariantPack)
      .set(Attribute::kPackIds, AttributeType::kInt64, ids)
      .set(Attribute::kPackPointers, AttributeType::kPointer, addresses)
      .set_one(Attribute::kPackWorkspace, AttributeType::kPointer, workspace);
  const Descriptor pack = builder.finish();
  if (!builder.status().ok()) return builder.status();
  Status status = to_status(table, table.set_stream(handle, stream), "cudnnSetStream");
  if (status.ok()) status = to_status(table, table.execute(handle, plan, pack), "cudnnBackendExecute");
  return status;
}

}  // namespace torch_remote::worker::cuda::dnn
