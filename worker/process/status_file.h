#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "ir/status.h"
#include "remote/transport/forwarding_transport.h"

// What a listener and its sessions' processes do, in a file that others map and read
// (python/torch_remote_cli/status_file.py has the layout, too): its numbers are written by one process each, and read
// at any time.
namespace torch_remote::worker {

// Of one session; all 0 while nobody has it.
struct SessionStatus {
  std::atomic<uint64_t> process;
  std::atomic<uint64_t> began;         // seconds since 1970
  std::atomic<uint64_t> messages;      // from the client
  std::atomic<uint64_t> bytes_in;      // with tensors
  std::atomic<uint64_t> bytes_out;     // likewise
  std::atomic<uint64_t> busy;          // ns between a message's coming and the wait for the next one
  std::atomic<uint64_t> last_message;  // ns of CLOCK_MONOTONIC
  char client[72];                     // "process 12", "127.0.0.1:4000"; ends with 0
};
static_assert(sizeof(SessionStatus) == 128 && std::atomic<uint64_t>::is_always_lock_free);

struct WorkerStatus {
  static constexpr uint64_t kMagic = 0x0031544154535254;  // "TRSTAT1"
  static constexpr size_t kSessions = 256;                // those beyond are not shown

  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> process;                    // the listener
  std::atomic<uint64_t> most;                       // sessions at once; 0: any number
  std::atomic<uint64_t> sessions, refused, killed;  // so far; killed: by a signal
  // Of sessions that have ended.
  std::atomic<uint64_t> messages, bytes_in, bytes_out, busy;
  uint64_t spare[6];
  SessionStatus session[kSessions];
};
static_assert(offsetof(WorkerStatus, session) == 128);

// The listener's. Sessions' processes get its descriptor and the number of their session.
class StatusFile {
 public:
  // Makes the file, readable by this user only, or replaces one that was left. `most`: see WorkerStatus.
  static Status create(const std::string& path, size_t most, std::unique_ptr<StatusFile>* file);
  ~StatusFile();
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  WorkerStatus& all() { return *all_; }
  // For a session's process that is about to be made; null if there is no room.
  SessionStatus* begin(std::string_view client);
  // It has ended: what it did is added to what all did.
  void end(SessionStatus* session);

  int descriptor() const { return descriptor_; }
  size_t number_of(const SessionStatus* session) const { return static_cast<size_t>(session - all_->session); }
  // In a session's process: its numbers, which stay mapped. Null if that is no such file. Closes the descriptor.
  static SessionStatus* attach(int descriptor, size_t number);

 private:
  StatusFile(std::string path, int descriptor, WorkerStatus* all)
      : path_(std::move(path)), descriptor_(descriptor), all_(all) {}
  const std::string path_;
  const int descriptor_;
  WorkerStatus* const all_;
};

// Counts what goes over a session's transport.
class CountingTransport : public remote::ForwardingTransport {
 public:
  CountingTransport(std::unique_ptr<remote::Transport> transport, SessionStatus* counts)
      : ForwardingTransport(std::move(transport)), counts_(counts) {}

  Status send(wire::Header header, std::span<const uint8_t> control, remote::AttachmentPtr attachment) override;
  Status receive(remote::Frame* frame, std::chrono::nanoseconds timeout) override;

 private:
  SessionStatus* const counts_;
  uint64_t busy_since_ = 0;  // 0: it waits
};

}  // namespace torch_remote::worker
