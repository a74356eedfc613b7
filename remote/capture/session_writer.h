#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "flatbuffers/flatbuffers.h"
#include "ir/graph.h"
#include "ir/math_modes.h"
#include "remote/capture/capture_writer.h"
#include "remote/wire/delta.h"

// Writes the capture of a session that no client recorded: a part that remote-replay cuts out of a capture, or what
// remote-reduce leaves of it.
namespace torch_remote::remote {

// Appends messages in order, as a client would send them. Not thread safe.
class SessionWriter {
 public:
  explicit SessionWriter(std::shared_ptr<CaptureWriter> writer) : writer_(std::move(writer)) {}

  void upload(uint64_t buffer, std::span<const std::byte> bytes);
  // `source` is the graph before the passes, or null.
  void load(uint32_t number, const ir::Graph* source, const ir::Graph& program);
  // Appends a run of a loaded program, which determines the sizes of `params` and `inputs`.
  void run(uint32_t number, std::span<const int64_t> params, std::span<const uint64_t> inputs, uint64_t first_result_id,
           std::vector<uint64_t> freed_ids = {}, ir::MathModes math_modes = 0);
  // Appends a read of a view (sizes and strides in elements) and its reply, the packed bytes.
  void read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
            int64_t offset, std::span<const std::byte> bytes);

 private:
  // Writes the message in `builder` and returns its sequence.
  uint64_t send(wire::Type type, flatbuffers::FlatBufferBuilder& builder, std::span<const std::byte> attachment,
                uint16_t flags = 0);

  const std::shared_ptr<CaptureWriter> writer_;
  std::map<uint32_t, LastRun> last_runs_;  // last run of each program, by number
  uint64_t sequence_ = 0;
};

// Writes a capture of one run: the bytes of its inputs, the program, the run. `source` is the graph before the passes.
// Overwrites the file.
Status save_run(const std::string& path, const ir::Graph& source, const ir::Graph& program,
                std::span<const int64_t> params, std::span<const std::vector<std::byte>> inputs,
                ir::MathModes math_modes);

}  // namespace torch_remote::remote
