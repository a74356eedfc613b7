#include "remote/capture/session_writer.h"

#include "remote/wire/message.h"

namespace torch_remote::remote {

uint64_t SessionWriter::send(wire::Type type, flatbuffers::FlatBufferBuilder& builder,
                             std::span<const std::byte> attachment, uint16_t flags) {
  wire::Header header;
  header.type = static_cast<uint8_t>(type);
  header.flags = static_cast<uint16_t>(flags | (attachment.empty() ? 0 : wire::kAttachment));
  header.sequence = ++sequence_;
  writer_->sent(header, {builder.GetBufferPointer(), builder.GetSize()}, attachment);
  return sequence_;
}

void SessionWriter::upload(uint64_t buffer, std::span<const std::byte> bytes) {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateUpload(builder, buffer));
  send(wire::Type::kUpload, builder, bytes);
}

void SessionWriter::load(uint32_t number, const ir::Graph* source, const ir::Graph& program) {
  if (source) writer_->source_graph(number, ir::encode_program(*source));
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateLoadProgram(builder, number));
  const std::vector<uint8_t> bytes = ir::encode_program(program);
  send(wire::Type::kLoadProgram, builder, std::as_bytes(std::span(bytes)));
  last_runs_[number] = {};
}

void SessionWriter::run(uint32_t number, std::span<const int64_t> params, std::span<const uint64_t> inputs,
                        uint64_t first_result_id, std::vector<uint64_t> freed_ids, ir::MathModes math_modes) {
  LastRun& last = last_runs_[number];
  std::vector<uint8_t> encoded_params, encoded_bindings, encoded_freed_ids;
  encode_params(params, last.params, encoded_params);
  encode_bindings(inputs, first_result_id, last.bindings, encoded_bindings);
  encode_freed_ids(freed_ids, encoded_freed_ids);
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateRunDirect(builder, number, first_result_id, &encoded_params, &encoded_bindings,
                                       &encoded_freed_ids, /*reset_delta=*/false, math_modes));
  send(wire::Type::kRun, builder, {});
}

void SessionWriter::read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes,
                         std::span<const int64_t> strides, int64_t offset, std::span<const std::byte> bytes) {
  flatbuffers::FlatBufferBuilder builder;
  const std::vector<int64_t> s(sizes.begin(), sizes.end()), t(strides.begin(), strides.end());
  builder.Finish(wire::CreateReadDirect(builder, buffer, item_size, &s, &t, offset));
  wire::Header header;
  header.sequence = send(wire::Type::kRead, builder, {}, wire::kWantsReply);
  header.type = static_cast<uint8_t>(wire::Type::kReadReply);
  header.flags = wire::kAttachment;
  flatbuffers::FlatBufferBuilder reply;
  reply.Finish(wire::CreateReadReply(reply));
  writer_->received(header, {reply.GetBufferPointer(), reply.GetSize()}, bytes);
}

Status save_run(const std::string& path, const ir::Graph& source, const ir::Graph& program,
                std::span<const int64_t> params, std::span<const std::vector<std::byte>> inputs,
                ir::MathModes math_modes) {
  std::shared_ptr<CaptureWriter> writer;
  if (Status status = CaptureWriter::open({path, UINT64_MAX}, &writer); !status) return status;
  SessionWriter session(std::move(writer));
  std::vector<uint64_t> ids;
  for (const std::vector<std::byte>& bytes : inputs) {
    ids.push_back(ids.size() + 1);
    session.upload(ids.back(), bytes);
  }
  ir::Graph sent = program;
  sent.source_lines.clear();  // `source` has them
  session.load(1, &source, sent);
  session.run(1, params, ids, ids.size() + 1, {}, math_modes);
  return {};
}

}  // namespace torch_remote::remote
