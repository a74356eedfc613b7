#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "flatbuffers/flatbuffers.h"
#include "ir/graph.h"
#include "ir/trace.h"
#include "remote/transport/transport.h"
#include "remote/wire/delta.h"

// The worker's end of the protocol for tests of the client. It decodes and logs messages but executes nothing.
namespace torch_remote::remote {

class FakeWorker {
 public:
  struct Message {
    wire::Type type{};
    uint64_t sequence = 0;
    uint16_t flags = 0;
    uint32_t program = 0;
    uint64_t buffer = 0;
    uint64_t first_result_id = 0;
    std::vector<int64_t> params;
    std::vector<uint64_t> inputs;
    std::vector<uint64_t> freed_ids;
    std::vector<uint32_t> unloaded;
    size_t bytes = 0;  // of the control message
  };
  struct Failure {
    Status status;
    uint32_t record = 0;
  };

  explicit FakeWorker(std::unique_ptr<Transport> transport, Status hello = {})
      : transport_(std::move(transport)), hello_(std::move(hello)), thread_([this] { serve(); }) {}
  ~FakeWorker() {
    die();
    thread_.join();
  }

  // Makes an encoded program for this worker, as a BuildFunction returns it. It contains only how many parameters and
  // inputs the program has.
  static std::vector<uint8_t> make_program(const ir::Trace& trace);
  static std::vector<uint8_t> make_program(const ir::Graph& graph);

  // While paused, the worker receives nothing.
  void pause(bool paused) {
    std::lock_guard lock(mutex_);
    paused_ = paused;
    changed_.notify_all();
    if (transport_) transport_->wake();
  }
  void die() {
    std::lock_guard lock(mutex_);
    dead_ = true;
    changed_.notify_all();
    if (transport_) transport_->wake();
  }
  // `f` is called on the worker's thread for each Run. A failure that it returns is reported as by a real worker.
  void on_run(std::function<Failure(const Message&)> f) {
    std::lock_guard lock(mutex_);
    on_run_ = std::move(f);
  }
  void set_result_words(std::vector<int64_t> result_words) {
    std::lock_guard lock(mutex_);
    result_words_ = std::move(result_words);
  }
  // While held, replies are queued. They are sent when this is called with false.
  void hold_replies(bool hold) {
    std::lock_guard lock(mutex_);
    hold_replies_ = hold;
    if (transport_) transport_->wake();
  }
  // Sets the events of the worker's profile. It describes one program: number 1, with one node.
  void set_profile(std::vector<wire::ProfileEvent> events) {
    std::lock_guard lock(mutex_);
    profile_ = std::move(events);
  }
  // Sends these events at once as a profile part, as a worker does from time to time.
  void hand_over_profile(const std::vector<wire::ProfileEvent>& events);
  static constexpr uint64_t kFakeClock = uint64_t{1} << 60;  // the constant value of the worker's clock
  // Sends a frame with these contents.
  void send_raw(wire::Type type, uint64_t sequence, std::vector<uint8_t> control, uint16_t flags = 0);
  // Without the log, the contents of messages and uploads are not stored.
  void log_messages(bool log) { log_ = log; }
  // Allows gaps in the sequence: the client starts with messages that have unusual sequences.
  void allow_gaps() { gaps_ = true; }

  // The messages so far, without the hello.
  std::vector<Message> messages() {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  bool session_was_closed() {
    std::lock_guard lock(mutex_);
    return session_closed_;
  }

 private:
  void serve();
  bool handle(Frame& frame);
  void run(Frame& frame, Message& message);
  void reply(wire::Type type, uint64_t sequence, std::span<const uint8_t> control, AttachmentPtr attachment);
  // Replies to the current message, once it is in messages().
  void answer(wire::Type type, const flatbuffers::FlatBufferBuilder& builder, const AttachmentPtr& attachment);
  void acknowledge();
  // Encodes the control message of a profile with these events, and returns its attachment.
  AttachmentPtr encode_profile(flatbuffers::FlatBufferBuilder& builder, const std::vector<wire::ProfileEvent>& events);

  std::unique_ptr<Transport> transport_;
  const Status hello_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool paused_ = false, dead_ = false, session_closed_ = false;
  std::atomic<bool> hold_replies_ = false, log_ = true, gaps_ = false;
  std::function<Failure(const Message&)> on_run_;
  std::vector<int64_t> result_words_;
  std::vector<wire::ProfileEvent> profile_;
  std::vector<Message> messages_;

  // The following belong to the worker's thread.
  std::map<uint32_t, LastRun> last_runs_;  // by program; those that are loaded
  std::map<uint64_t, std::vector<std::byte>> buffers_, checkpoint_;
  std::vector<std::function<void()>> held_;
  std::function<void()> answer_;
  uint64_t done_ = 0, acknowledged_ = 0;
  Failure failure_;
  Message failed_;
  std::thread thread_;
};

}  // namespace torch_remote::remote
