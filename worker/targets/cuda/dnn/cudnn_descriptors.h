#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/targets/cuda/dnn/cudnn.h"

// What graphs of cuDNN's are made of, whatever they compute: descriptors, the library's proposals, memory for a plan.
namespace torch_remote::worker::cuda::dnn {

// The last one first, as each may refer to those before it.
void destroy(const Table& table, std::vector<Descriptor>& made);

// Descriptors that are gone with this.
struct Temporary {
  explicit Temporary(const Table& used) : table(used) {}
  ~Temporary() { destroy(table, made); }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;
  const Table& table;
  std::vector<Descriptor> made;
};

// Descriptors, each made, told what it is, and finalized; they go into a list. After an error nothing else is done.
class Builder {
 public:
  Builder(const Table& table, std::vector<Descriptor>* keep) : table_(table), keep_(keep) {}

  Builder& make(Kind kind);
  template <typename T>
  Builder& set(Attribute attribute, Is type, const std::vector<T>& values) {
    return set_all(attribute, type, static_cast<int64_t>(values.size()), static_cast<const void*>(values.data()));
  }
  template <typename T>
  Builder& set_one(Attribute attribute, Is type, T value) {
    return set_all(attribute, type, 1, static_cast<const void*>(&value));
  }
  // Null after an error.
  Descriptor finish();
  const Status& status() const { return status_; }

 private:
  Builder& set_all(Attribute attribute, Is type, int64_t count, const void* values);
  bool check(Result result, const char* what);

  const Table& table_;
  std::vector<Descriptor>* const keep_;
  Descriptor current_ = nullptr;
  Status status_;
};

// What the library proposes for a graph, its favourite first: configs of engines, which are among those of `made`.
Status propose(const Table& table, Descriptor graph, HeuristicsMode mode, Temporary* made,
               std::vector<Descriptor>* configs);
// What a config's engine does to numbers. False: it does not say.
bool find_notes(const Table& table, Descriptor config, std::vector<Note>* notes);
// The plan of a config; both are in `made` after it. An error, too, if it wants more bytes than `most`.
Status make_plan(const Table& table, Handle handle, Descriptor config, uint64_t most, std::vector<Descriptor>* made,
                 Descriptor* plan, uint64_t* workspace);
// Has it done, or captured, with these addresses by tensors' ids. Those of numbers are the host's.
Status execute(const Table& table, Handle handle, Descriptor plan, const std::vector<int64_t>& ids,
               const std::vector<DevicePointer>& addresses, DevicePointer workspace, Stream stream);

// Memory that is given back at the end: who has it next uses it behind what is queued until then.
struct Workspace {
  Workspace() = default;
  ~Workspace() {
    if (buffer.release != nullptr) buffer.release(buffer.owner);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  bool take(CachingAllocator& memory, uint64_t bytes) {
    return bytes == 0 || memory.allocate(bytes, &buffer, Reach::kOwn);
  }
  DevicePointer address() const { return reinterpret_cast<DevicePointer>(buffer.data); }
  tr_buffer buffer{};
};

}  // namespace torch_remote::worker::cuda::dnn
