#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "flatbuffers/flatbuffers.h"
#include "ir/graph.h"
#include "remote/capture/capture_writer.h"
#include "remote/wire/delta.h"

// Writes the capture of a session that no client had: what remote-replay cuts out of a capture and what remote-reduce
// leaves of it.
namespace torch_remote::remote {

// The messages in order, as a client would send them. Not thread safe.
class SessionWriter {
 public:
  explicit SessionWriter(std::shared_ptr<CaptureWriter> writer) : writer_(std::move(writer)) {}

  void upload(uint64_t buffer, std::span<const std::byte> bytes);
  // `source`: the graph before the passes, or null.
  void load(uint32_t number, const ir::Graph* source, const ir::Graph& program);
  // Of a program that was loaded. `params` and `inputs` have as many elements as it wants.
  void run(uint32_t number, std::span<const int64_t> params, std::span<const uint64_t> inputs, uint64_t base,
           std::vector<uint64_t> frees = {});
  // A view of a buffer (sizes and strides in elements), and its bytes, packed.
  void read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
            int64_t offset, std::span<const std::byte> bytes);

 private:
  // What `builder` holds; returns its sequence.
  uint64_t send(wire::Type type, flatbuffers::FlatBufferBuilder& builder, std::span<const std::byte> attachment,
                uint16_t flags = 0);

  const std::shared_ptr<CaptureWriter> writer_;
  std::map<uint32_t, LastRun> last_runs_;  // by program
  uint64_t sequence_ = 0;
};

}  // namespace torch_remote::remote
