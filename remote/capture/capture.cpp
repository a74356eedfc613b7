#include "remote/capture/capture.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "remote/capture/capture_format.h"
#include "remote/capture/capture_generated.h"
#include "remote/wire/message.h"
#include "remote/wire/wire.h"

namespace torch_remote::remote {
namespace {

using capture::ChunkHeader;
using capture::ChunkType;

Status damaged(uint64_t offset, const std::string& what) {
  return Status::invalid("remote: the capture is damaged at byte " + std::to_string(offset) + ": " + what);
}

Status unsupported(const std::string& what, const std::string& theirs, const std::string& ours) {
  return {ErrorCode::kUnsupported, "remote: the capture has " + what + " " + theirs + ", but this side reads " + ours +
                                       "; use the torch-remote that wrote it"};
}

std::optional<CapturedError> captured(const wire::Error* error) {
  if (error == nullptr) return std::nullopt;
  return CapturedError{wire::to_status(*error), error->program(), error->record(), error->sequence()};
}

std::string text(const flatbuffers::String* string) { return string ? string->str().substr(0, 200) : std::string(); }

class MappedFile : public CaptureReader {
 public:
  MappedFile() = default;
  ~MappedFile() override {
    if (!mapped_.empty()) munmap(mapped_.data(), mapped_.size());
  }
  Status map(const std::string& path) {
    const auto fail = [&](const std::string& why) {
      return Status::invalid("remote: cannot read the capture '" + path + "': " + why);
    };
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return fail(std::strerror(errno));
    struct stat info{};
    void* memory = nullptr;
    const bool plain = fstat(file, &info) == 0 && S_ISREG(info.st_mode);
    const auto size = static_cast<size_t>(info.st_size);
    if (plain && size > 0) memory = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
    const int error = errno;
    ::close(file);
    if (!plain) return fail("it is not a regular file");
    if (memory == MAP_FAILED) return fail(std::strerror(error));
    mapped_ = {static_cast<std::byte*>(memory), size};
    return index(mapped_);
  }

 private:
  std::span<std::byte> mapped_;
};

class InMemoryCapture : public CaptureReader {
 public:
  explicit InMemoryCapture(std::vector<std::byte> bytes) : held_(std::move(bytes)) {}
  Status start() { return index(held_); }

 private:
  const std::vector<std::byte> held_;
};

}  // namespace

Status CaptureReader::open(const std::string& path, std::unique_ptr<CaptureReader>* reader) {
  auto made = std::make_unique<MappedFile>();
  if (Status status = made->map(path); !status) return status;
  *reader = std::move(made);
  return {};
}

Status CaptureReader::parse(std::vector<std::byte> bytes, std::unique_ptr<CaptureReader>* reader) {
  auto made = std::make_unique<InMemoryCapture>(std::move(bytes));
  if (Status status = made->start(); !status) return status;
  *reader = std::move(made);
  return {};
}

bool CaptureReader::is_capture(std::span<const std::byte> bytes) {
  return bytes.size() >= sizeof(capture::kMagic) &&
         std::memcmp(bytes.data(), capture::kMagic, sizeof(capture::kMagic)) == 0;
}

// --- the container ---------------------------------------------------------------------------------------------------

Status CaptureReader::index(std::span<const std::byte> bytes) {
  bytes_ = bytes;
  if (!is_capture(bytes)) return damaged(0, "it does not begin with the magic number of a capture");
  capture::FileHeader file{};
  std::memcpy(&file, bytes.data(), std::min(bytes.size(), sizeof(file)));
  if (bytes.size() >= offsetof(capture::FileHeader, zero) && file.version != capture::kFormatVersion) {
    return unsupported("format version", std::to_string(file.version),
                       "version " + std::to_string(capture::kFormatVersion));
  }
  bool first = true;
  for (uint64_t at = sizeof(file); at < bytes.size() && ending_ == CaptureEnding::kCutOff; first = false) {
    const uint64_t left = bytes.size() - at;
    ChunkHeader header{};
    if (left < sizeof(header)) break;
    const std::byte* const data = bytes.data() + at;
    std::memcpy(&header, data, sizeof(header));
    if (wire::crc32c(data + capture::kHeaderChecked, sizeof(header) - capture::kHeaderChecked) !=
        header.header_checksum) {
      return damaged(at, "the checksum of a chunk's header is wrong");
    }
    if (header.attachment > left || capture::chunk_bytes(header.control, header.attachment) > left) break;
    const uint64_t size = capture::chunk_bytes(header.control, header.attachment);
    if (wire::crc32c(data + sizeof(header), size - sizeof(header)) != header.checksum) {
      return damaged(at, "the checksum of a chunk is wrong");
    }
    const std::byte* const control = data + sizeof(header);
    const Chunk chunk{at,
                      header.time,
                      {reinterpret_cast<const uint8_t*>(control), header.control},
                      {data + capture::align(sizeof(header) + header.control), header.attachment}};
    if (first != (header.type == ChunkType::kInfo))
      return damaged(at, "the first chunk, and no other one, must describe the capture");
    if (Status status = take(chunk, static_cast<uint32_t>(header.type)); !status) return status;
    at += size;
  }
  if (first) return damaged(std::min<uint64_t>(bytes.size(), sizeof(file)), "it ends before its description");
  return {};
}

Status CaptureReader::take(const Chunk& chunk, uint32_t type) {
  switch (static_cast<ChunkType>(type)) {
    case ChunkType::kInfo: {
      const auto* info = wire::verify<capture::Info>(chunk.control);
      if (!info) return damaged(chunk.offset, "its description is invalid");
      info_ = {text(info->torch_version()), info->process(), info->time()};
      return {};
    }
    case ChunkType::kSourceGraph:
      chunks_.push_back({chunk, type});
      return {};
    case ChunkType::kSent:
    case ChunkType::kReceived: {
      wire::Header header;
      if (chunk.control.size() < sizeof(header)) return damaged(chunk.offset, "a frame has no header");
      std::memcpy(&header, chunk.control.data(), sizeof(header));
      if (header.magic != wire::kMagic || header.length != chunk.control.size() - sizeof(header)) {
        return damaged(chunk.offset, "a frame is invalid");
      }
      if (header.version != wire::kVersion) {
        return unsupported("wire version", std::to_string(header.version), "version " + std::to_string(wire::kVersion));
      }
      const auto message = static_cast<wire::Type>(header.type);
      if (type == static_cast<uint32_t>(ChunkType::kSent) || message == wire::Type::kAcknowledge) {
        chunks_.push_back({chunk, type});
      } else if (message == wire::Type::kRunReply || message == wire::Type::kReadReply ||
                 message == wire::Type::kSynchronizeReply) {
        answers_.emplace(header.sequence, chunk);
      }
      return {};
    }
    case ChunkType::kEnd: {
      const auto* end = wire::verify<capture::End>(chunk.control);
      if (!end) return damaged(chunk.offset, "its end is invalid");
      ending_ = end->limit() > 0 ? CaptureEnding::kLimit : CaptureEnding::kComplete;
      return {};
    }
  }
  return damaged(chunk.offset, "a chunk has the unknown type " + std::to_string(type));
}

// --- events ----------------------------------------------------------------------------------------------------------

namespace {

wire::Header frame_header(std::span<const uint8_t> control) {
  wire::Header header;
  std::memcpy(&header, control.data(), sizeof(header));
  return header;
}

std::span<const uint8_t> message_of(std::span<const uint8_t> control) { return control.subspan(sizeof(wire::Header)); }

Status decode(std::span<const std::byte> bytes, uint64_t offset, ir::Graph* graph) {
  Status status = ir::decode_program(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), graph);
  if (status.ok() || status.code() == ErrorCode::kUnsupported) return status;
  return damaged(offset, status.message());
}

void find_interface(CapturedProgram& program) {
  for (uint32_t b = 0; b < program.graph.buffers.size(); ++b) {
    const ir::Buffer& buffer = program.graph.buffers[b];
    if (buffer.kind == ir::BufferKind::kInput) {
      program.inputs.push_back(b);
    } else if (buffer.survives) {
      program.survivors.push_back(b);
    }
  }
}

// Whether the graphs have the same numbers of parameters, inputs and survivors, so that a run of one is a run of the
// other.
bool same_interface(const ir::Graph& a, const ir::Graph& b) {
  const auto interface = [](const ir::Graph& graph) {
    std::pair<size_t, size_t> counts;
    for (const ir::Buffer& buffer : graph.buffers) {
      if (buffer.kind == ir::BufferKind::kInput) {
        ++counts.first;
      } else if (buffer.survives) {
        ++counts.second;
      }
    }
    return counts;
  };
  return a.params == b.params && interface(a) == interface(b);
}

}  // namespace

void CaptureReader::rewind() {
  next_ = 0;
  source_graphs_.clear();
  programs_.clear();
}

template <class Message>
Status CaptureReader::answer(uint64_t sequence, const Message** message, std::span<const std::byte>* attachment) const {
  *message = nullptr;
  const auto found = answers_.find(sequence);
  if (found == answers_.end()) return {};
  *message = wire::verify<Message>(message_of(found->second.control));
  if (!*message) return damaged(found->second.offset, "an answer is invalid");
  if (attachment) *attachment = found->second.attachment;
  return {};
}

Status CaptureReader::next(std::optional<CaptureEvent>* event) {
  event->reset();
  while (next_ < chunks_.size()) {
    const auto& [chunk, chunk_type] = chunks_[next_++];
    const auto type = static_cast<ChunkType>(chunk_type);
    if (type == ChunkType::kSourceGraph) {
      if (Status status = source_graph(chunk); !status) return status;
      continue;
    }
    const wire::Header header = frame_header(chunk.control);
    CaptureEvent made;
    made.sequence = header.sequence;
    made.time = chunk.time;
    Status status;
    bool is_event = true;
    switch (static_cast<wire::Type>(header.type)) {
      case wire::Type::kLoadProgram:
        status = load_program(chunk, &made);
        break;
      case wire::Type::kUnloadPrograms:
        status = unload(chunk);
        is_event = false;
        break;
      case wire::Type::kRun:
        status = run(chunk, header.sequence, header.flags & wire::kWantsReply, &made);
        break;
      case wire::Type::kUpload:
        status = upload(chunk, &made);
        break;
      case wire::Type::kRead:
        status = read(chunk, header.sequence, &made);
        break;
      case wire::Type::kFree:
        status = free(chunk, &made);
        break;
      case wire::Type::kSynchronize:
        status = synchronize(chunk, header.sequence, &made);
        break;
      case wire::Type::kAcknowledge:
        status = acknowledge(chunk, &made, &is_event);
        break;
      default:  // hello messages and questions, which a replay does not need
        is_event = false;
    }
    if (!status) return status;
    if (!is_event) continue;
    *event = std::move(made);
    return {};
  }
  return {};
}

Status CaptureReader::source_graph(const Chunk& chunk) {
  const auto* message = wire::verify<capture::SourceGraph>(chunk.control);
  if (!message) return damaged(chunk.offset, "a graph from before the passes is invalid");
  source_graphs_[message->program()] = chunk;
  return {};
}

Status CaptureReader::load_program(const Chunk& chunk, CaptureEvent* event) {
  const auto* message = wire::verify<wire::LoadProgram>(message_of(chunk.control));
  if (!message) return damaged(chunk.offset, "a program has no number");
  auto program = std::make_shared<CapturedProgram>();
  program->number = message->program();
  program->encoded = {reinterpret_cast<const uint8_t*>(chunk.attachment.data()), chunk.attachment.size()};
  if (Status status = decode(chunk.attachment, chunk.offset, &program->graph); !status) return status;
  find_interface(*program);
  if (const auto source = source_graphs_.find(program->number); source != source_graphs_.end()) {
    const Chunk& before = source->second;
    ir::Graph graph;
    if (Status status = decode(before.attachment, before.offset, &graph); !status) return status;
    if (!same_interface(graph, program->graph)) {
      return damaged(before.offset, "a graph from before the passes belongs to another program");
    }
    program->graph.source_lines = graph.source_lines;
    program->source = std::move(graph);
    source_graphs_.erase(source);
  }
  ProgramState& state = programs_[program->number];
  state = {program, std::vector<int64_t>(program->graph.params), {}};
  state.bindings.ids.assign(program->inputs.size(), 0);
  event->what = ProgramEvent{program};
  return {};
}

Status CaptureReader::unload(const Chunk& chunk) {
  const auto* message = wire::verify<wire::UnloadPrograms>(message_of(chunk.control));
  if (!message || !message->programs()) return damaged(chunk.offset, "a list of dropped programs is invalid");
  for (const uint32_t program : *message->programs()) programs_.erase(program);
  return {};
}

Status CaptureReader::run(const Chunk& chunk, uint64_t sequence, bool wants_reply, CaptureEvent* event) {
  const auto* message = wire::verify<wire::Run>(message_of(chunk.control));
  if (!message) return damaged(chunk.offset, "a run is invalid");
  const auto state = programs_.find(message->program());
  if (state == programs_.end()) {
    return damaged(chunk.offset, "a run names program " + std::to_string(message->program()) + ", which was not sent");
  }
  auto& [program, params, bindings] = state->second;
  RunEvent run;
  if (message->reset_delta()) {
    std::ranges::fill(params, 0);
    std::ranges::fill(bindings.ids, 0);
    bindings.relative.clear();
    bindings.first_result_id = 0;
  }
  bool changed;
  Status status = decode_params(wire::bytes(message->params()), params, &changed);
  if (status.ok()) status = decode_bindings(wire::bytes(message->bindings()), message->first_result_id(), bindings);
  if (status.ok()) status = decode_freed_ids(wire::bytes(message->freed_ids()), &run.freed_ids);
  if (!status) return damaged(chunk.offset, status.message());
  run.program = program;
  run.params = params;
  run.inputs = bindings.ids;
  run.first_result_id = message->first_result_id();
  run.math_modes = message->math_modes();
  run.wants_reply = wants_reply;
  const wire::RunReply* reply = nullptr;
  if (wants_reply) {
    if (status = answer(sequence, &reply, nullptr); !status) return status;
  }
  if (reply) {
    run.has_reply = true;
    run.result_words = wire::elements(reply->result_words());
    run.error = captured(reply->error());
  }
  event->what = std::move(run);
  return {};
}

Status CaptureReader::upload(const Chunk& chunk, CaptureEvent* event) {
  const auto* message = wire::verify<wire::Upload>(message_of(chunk.control));
  if (!message) return damaged(chunk.offset, "an upload is invalid");
  event->what = UploadEvent{message->buffer(), chunk.attachment};
  return {};
}

Status CaptureReader::read(const Chunk& chunk, uint64_t sequence, CaptureEvent* event) {
  const auto* message = wire::verify<wire::Read>(message_of(chunk.control));
  if (!message) return damaged(chunk.offset, "a read is invalid");
  ReadEvent read{message->buffer(),
                 message->item_size(),
                 wire::elements(message->sizes()),
                 wire::elements(message->strides()),
                 message->offset(),
                 false,
                 {},
                 {}};
  const wire::ReadReply* reply;
  if (Status status = answer(sequence, &reply, &read.bytes); !status) return status;
  if (reply) {
    read.has_reply = true;
    read.error = captured(reply->error());
    uint64_t expected = read.item_size;
    bool sound = read.sizes.size() == read.strides.size();
    for (const int64_t size : read.sizes) {
      sound = sound && size >= 0 && !__builtin_mul_overflow(expected, static_cast<uint64_t>(size), &expected);
    }
    if (!read.error && (!sound || expected != read.bytes.size())) {
      return damaged(chunk.offset, "the answer of a read has " + std::to_string(read.bytes.size()) + " bytes");
    }
  }
  event->what = std::move(read);
  return {};
}

Status CaptureReader::free(const Chunk& chunk, CaptureEvent* event) {
  const auto* message = wire::verify<wire::Free>(message_of(chunk.control));
  if (!message) return damaged(chunk.offset, "a list of buffers is invalid");
  FreeEvent free;
  if (Status status = decode_freed_ids(wire::bytes(message->freed_ids()), &free.buffers); !status) {
    return damaged(chunk.offset, status.message());
  }
  event->what = std::move(free);
  return {};
}

Status CaptureReader::synchronize(const Chunk& chunk, uint64_t sequence, CaptureEvent* event) {
  const auto* message = wire::verify<wire::Synchronize>(message_of(chunk.control));
  if (!message) return damaged(chunk.offset, "a synchronization is invalid");
  SynchronizeEvent synchronize;
  const wire::SynchronizeReply* reply;
  if (Status status = answer(sequence, &reply, nullptr); !status) return status;
  if (reply) {
    synchronize.has_reply = true;
    synchronize.error = captured(reply->error());
  }
  event->what = std::move(synchronize);
  return {};
}

Status CaptureReader::acknowledge(const Chunk& chunk, CaptureEvent* event, bool* is_event) {
  const auto* message = wire::verify<wire::Acknowledge>(message_of(chunk.control));
  if (!message) return damaged(chunk.offset, "an acknowledgement is invalid");
  const std::optional<CapturedError> error = captured(message->error());
  *is_event = error.has_value();
  if (error) event->what = ErrorEvent{*error};
  return {};
}

}  // namespace torch_remote::remote
