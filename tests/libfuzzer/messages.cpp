// A session of the worker: a hello, then the messages of the input. Target `messages` has a runner that checks memory
// accesses, target `execution` the worker's own runner.
//
//   input   := message*
//   message := type (1 byte) flags (1) control's length (2) attachment's length (2) control attachment
//
// Flag 1 requests a reply, flag 2 marks an attachment (wire::Flags). Sequence numbers are generated. Integers are
// little endian.
#include <algorithm>
#include <deque>
#include <memory>
#include <utility>

#include "remote/transport/transport.h"
#include "remote/wire/message.h"
#include "remote/wire/wire.h"
#include "tests/libfuzzer/fuzzer.h"
#include "tests/libfuzzer/ignore_signatures.h"
#include "tests/libfuzzer/runner.h"
#include "worker/server/server.h"
#include "worker/targets/cpu/cpu_target.h"

namespace torch_remote::fuzzers {
namespace {

using remote::AttachmentPtr;
using remote::Frame;

// A separate heap block, so that AddressSanitizer detects accesses past its end.
class Block final : public remote::Attachment {
 public:
  explicit Block(size_t size)
      : data_(static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64))), size_(size) {}
  ~Block() override { std::free(data_); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  std::span<std::byte> bytes() override { return {data_, size_}; }

 private:
  std::byte* data_;
  size_t size_;
};

class Shared final : public remote::Attachment {
 public:
  Shared(std::span<std::byte> bytes, std::shared_ptr<void> keep) : bytes_(bytes), keep_(std::move(keep)) {}
  std::span<std::byte> bytes() override { return bytes_; }

 private:
  std::span<std::byte> bytes_;
  std::shared_ptr<void> keep_;
};

// The worker's end of a connection. The client has already sent everything.
class Script final : public remote::Transport {
 public:
  explicit Script(std::deque<Frame> frames) : frames_(std::move(frames)) {}

  AttachmentPtr allocate(size_t size) override {
    return size == 0 || size > session_memory() ? nullptr : std::make_shared<Block>(size);
  }
  AttachmentPtr share(const void* memory, size_t size, std::shared_ptr<void> owner) override {
    return std::make_shared<Shared>(std::span(static_cast<std::byte*>(const_cast<void*>(memory)), size),
                                    std::move(owner));
  }
  Status send(wire::Header header, std::span<const uint8_t> control, AttachmentPtr attachment) override {
    if (header.type == 0 || header.type > static_cast<uint8_t>(wire::Type::kShadowReply)) wrong("an answer of no type");
    uint8_t sum = 0;
    for (const uint8_t byte : control) sum ^= byte;
    if (attachment) {
      for (const std::byte byte : attachment->bytes()) sum ^= static_cast<uint8_t>(byte);  // all bytes must be readable
    }
    [[maybe_unused]] static volatile uint8_t sink;
    sink = sum;
    return {};
  }
  Status receive(Frame* frame, std::chrono::nanoseconds timeout) override {
    if (frames_.empty()) return {ErrorCode::kLost, "remote: the input has ended"};
    *frame = std::move(frames_.front());
    frames_.pop_front();
    return {};
  }
  void wake() override {}
  void abandon() override {}
  std::string description() const override { return "a script"; }

 private:
  std::deque<Frame> frames_;
};

Frame make_frame(uint8_t type, uint16_t flags, uint64_t sequence, std::span<const uint8_t> control) {
  Frame frame;
  frame.header.type = type;
  frame.header.flags = flags;
  frame.header.sequence = sequence;
  frame.header.length = static_cast<uint32_t>(control.size());
  frame.control.assign(control.begin(), control.end());
  return frame;
}

Frame make_hello() {
  flatbuffers::FlatBufferBuilder builder;
  builder.Finish(wire::CreateHello(builder, 1));
  return make_frame(static_cast<uint8_t>(wire::Type::kHello), wire::kWantsReply, 1,
                    {builder.GetBufferPointer(), builder.GetSize()});
}

}  // namespace
}  // namespace torch_remote::fuzzers

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace torch_remote;
  using namespace torch_remote::fuzzers;
  static const Frame hello = make_hello();
  std::deque<Frame> frames{hello};
  Input input(data, size);
  while (!input.empty()) {
    const auto type = input.number<uint8_t>();
    const uint16_t flags = input.number<uint8_t>() & (wire::kWantsReply | wire::kAttachment | wire::kSenderSpins);
    const auto control = input.number<uint16_t>();
    const auto attached = input.number<uint16_t>();
    const bool is_cancel = type == static_cast<uint8_t>(wire::Type::kCancel);
    frames.push_back(make_frame(type, flags, is_cancel ? 0 : frames.size() + 1, input.take(control)));
    if (flags & wire::kAttachment) {
      const auto bytes = std::as_bytes(input.take(attached));
      auto block = std::make_shared<Block>(bytes.size());
      std::copy(bytes.begin(), bytes.end(), block->bytes().begin());
      if (type == static_cast<uint8_t>(wire::Type::kLoadProgram)) {
        ignore_signatures({reinterpret_cast<uint8_t*>(block->bytes().data()), bytes.size()});
      }
      frames.back().attachment = std::move(block);
    }
  }
  worker::ServerOptions options;
  options.open_device = worker::open_cpu;
  options.runner = runner();
  options.threads = 1;
  options.memory_limit = session_memory();
  static const std::shared_ptr<const worker::Files> files = [] {
    std::shared_ptr<const worker::Files> found;
    (void)worker::Files::in("/tmp", &found);
    return found;
  }();
  options.files = files;
  // Calls of Python functions fail at the start of the process.
  options.python = "python3";
  options.python_program = "/proc/nonexistent";
  Script script(std::move(frames));
  return count_outcome(worker::serve(script, options).ok());
}
