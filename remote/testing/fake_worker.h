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

// The worker's end of the protocol without executing anything, for the client's tests: it decodes what comes and keeps
// it.
namespace torch_remote::remote {

class FakeWorker {
 public:
  struct Message {
    wire::Type type{};
    uint64_t sequence = 0;
    uint16_t flags = 0;
    uint32_t program = 0;
    uint64_t buffer = 0;
    uint64_t base = 0;
    std::vector<int64_t> params;
    std::vector<uint64_t> inputs;
    std::vector<uint64_t> frees;
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

  // A program is what make_program gives: how many parameters and inputs a run of it has.
  static std::vector<uint8_t> make_program(const ir::Trace& trace);
  static std::vector<uint8_t> make_program(const ir::Graph& graph);

  // While paused nothing is taken from the transport.
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
  // Called on the worker's thread for each Run; a failure is reported as a worker would.
  void on_run(std::function<Failure(const Message&)> f) {
    std::lock_guard lock(mutex_);
    on_run_ = std::move(f);
  }
  void set_words(std::vector<int64_t> words) {
    std::lock_guard lock(mutex_);
    words_ = std::move(words);
  }
  // While held, replies are not sent; they go out when it is called with false.
  void hold_replies(bool hold) {
    std::lock_guard lock(mutex_);
    hold_replies_ = hold;
    if (transport_) transport_->wake();
  }
  // The events of its profile; the one program that it describes is number 1, of one node.
  void set_profile(std::vector<wire::ProfileEvent> events) {
    std::lock_guard lock(mutex_);
    profile_ = std::move(events);
  }
  // Sends these at once, as a worker does now and then.
  void hand_over_profile(const std::vector<wire::ProfileEvent>& events);
  static constexpr uint64_t kFakeClock = uint64_t{1} << 60;  // what its clock says, always
  // Sends this frame as it is.
  void send_raw(wire::Type type, uint64_t sequence, std::vector<uint8_t> control);
  // Without the log, messages and what they upload are forgotten.
  void log_messages(bool log) { log_ = log; }
  // The client begins anew with messages that it does not count in the usual way.
  void allow_gaps() { gaps_ = true; }

  // What came so far, without the greeting.
  std::vector<Message> messages() {
    std::lock_guard lock(mutex_);
    return messages_;
  }
  bool said_goodbye() {
    std::lock_guard lock(mutex_);
    return goodbye_;
  }

 private:
  void serve();
  bool handle(Frame& frame);
  void run(Frame& frame, Message& message);
  void reply(wire::Type type, uint64_t sequence, std::span<const uint8_t> control, AttachmentPtr attachment);
  // Replies to the message at hand, once it is in messages().
  void answer(wire::Type type, const flatbuffers::FlatBufferBuilder& builder, const AttachmentPtr& attachment);
  void progress();
  // The control message of a profile with these events, and what goes beside it.
  AttachmentPtr encode_profile(flatbuffers::FlatBufferBuilder& builder, const std::vector<wire::ProfileEvent>& events);

  std::unique_ptr<Transport> transport_;
  const Status hello_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool paused_ = false, dead_ = false, goodbye_ = false;
  std::atomic<bool> hold_replies_ = false, log_ = true, gaps_ = false;
  std::function<Failure(const Message&)> on_run_;
  std::vector<int64_t> words_;
  std::vector<wire::ProfileEvent> profile_;
  std::vector<Message> messages_;

  // The thread's own.
  std::map<uint32_t, LastRun> last_runs_;  // by program; those that it has
  std::map<uint64_t, std::vector<std::byte>> buffers_, checkpoint_;
  std::vector<std::function<void()>> held_;
  std::function<void()> answer_;
  uint64_t done_ = 0, acknowledged_ = 0;
  Failure failure_;
  Message failed_;
  std::thread thread_;
};

}  // namespace torch_remote::remote
