#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/targets/cuda/dnn/cudnn.h"

// Building blocks of all cuDNN graphs: descriptors, heuristic results, and a plan's workspace.
namespace torch_remote::worker::cuda::dnn {

// Destroys the last one first, as each may refer to earlier ones.
void destroy(const Table& table, std::vector<Descriptor>& made);

// Owns descriptors and destroys them at the end of its scope.
struct Temporary {
  explicit Temporary(const Table& used) : table(used) {}
  ~Temporary() { destroy(table, made); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const Table& table;
  std::vector<Descriptor> made;
};

// Creates descriptors, sets their attributes, finalizes them, and appends them to a list. After an error, all calls do
// nothing.
class Builder {
 public:
  Builder(const Table& table, std::vector<Descriptor>* keep) : table_(table), keep_(keep) {}

  Builder& make(DescriptorType kind);
  template <typename T>
  Builder& set(Attribute attribute, AttributeType type, const std::vector<T>& values) {
    return set_all(attribute, type, static_cast<int64_t>(values.size()), static_cast<const void*>(values.data()));
  }
  template <typename T>
  Builder& set_one(Attribute attribute, AttributeType type, T value) {
    return set_all(attribute, type, 1, static_cast<const void*>(&value));
  }
  // Null after an error.
  Descriptor finish();
  // `flag`: kTensorIsVirtual or kTensorIsNumber, if the tensor is one.
  Descriptor tensor(int64_t id, Type type, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides,
                    std::optional<Attribute> flag = {}, int64_t alignment = kAlignment);
  Descriptor graph(Handle handle, const std::vector<Descriptor>& operations);
  const Status& status() const { return status_; }

 private:
  Builder& set_all(Attribute attribute, AttributeType type, int64_t count, const void* values);
  bool check(Result result, const char* what);

  const Table& table_;
  std::vector<Descriptor>* const keep_;
  Descriptor current_ = nullptr;
  Status status_;
};

// The strides of dense images [batch, channel, space...]: channels last, or contiguous.
std::vector<int64_t> image_strides(std::span<const int64_t> sizes, bool channels_last);

// Asks cuDNN's heuristics for engine configs for a graph, first choice first. `made` owns them.
Status query_heuristics(const Table& table, Descriptor graph, HeuristicsMode mode, Temporary* made,
                        std::vector<Descriptor>* configs);
// The numerical notes of a config's engine. False: the engine does not report them.
bool find_notes(const Table& table, Descriptor config, std::vector<NumericalNote>* notes);
// Makes the plan of a config. `made` owns its descriptors. Fails if the plan needs more than `most` bytes of workspace.
Status make_plan(const Table& table, Handle handle, Descriptor config, uint64_t most, std::vector<Descriptor>* made,
                 Descriptor* plan, uint64_t* workspace);
// Executes or captures the plan, with addresses by tensor id. Addresses of numbers are on the host.
Status execute(const Table& table, Handle handle, Descriptor plan, const std::vector<int64_t>& ids,
               const std::vector<DevicePointer>& addresses, DevicePointer workspace, Stream stream);

// Device memory that is released at the end of its scope. Its next user is queued behind the work queued until then.
struct Workspace {
  Workspace() = default;
  ~Workspace() {
    if (buffer.release != nullptr) buffer.release(buffer.owner);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  bool take(CachingAllocator& memory, uint64_t bytes) {
    return bytes == 0 || memory.allocate(bytes, &buffer, Visibility::kPrivate);
  }
  DevicePointer address() const { return reinterpret_cast<DevicePointer>(buffer.data); }
  tr_buffer buffer{};
};

}  // namespace torch_remote::worker::cuda::dnn
