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

// Activity of a listener and its sessions' processes, in a file that others map and read
// (python/torch_remote_cli/status_file.py declares the layout, too). Each number is written by one process, and may be
// read at any time.
namespace torch_remote::worker {

// One session; all fields are 0 while the slot is unused.
struct SessionStatus {
  std::atomic<uint64_t> process;
  std::atomic<uint64_t> began;         // Seconds since 1970.
  std::atomic<uint64_t> messages;      // Messages from the client.
  std::atomic<uint64_t> bytes_in;      // Includes tensors.
  std::atomic<uint64_t> bytes_out;     // Includes tensors.
  std::atomic<uint64_t> busy;          // Nanoseconds from the arrival of a message to the wait for the next one.
  std::atomic<uint64_t> last_message;  // CLOCK_MONOTONIC in ns.
  char client[72];                     // "process 12", "127.0.0.1:4000"; NUL terminated.
};
static_assert(sizeof(SessionStatus) == 128 && std::atomic<uint64_t>::is_always_lock_free);

struct WorkerStatus {
  static constexpr uint64_t kMagic = 0x0031544154535254;  // "TRSTAT1"
  static constexpr size_t kSessions = 256;                // Further sessions are not shown.

  std::atomic<uint64_t> magic;
  std::atomic<uint64_t> process;                    // The listener.
  std::atomic<uint64_t> most;                       // Maximum number of concurrent sessions; 0: any number.
  std::atomic<uint64_t> sessions, refused, killed;  // Totals so far; killed: by a signal.
  // Sums over sessions that have ended.
  std::atomic<uint64_t> messages, bytes_in, bytes_out, busy;
  uint64_t spare[6];
  SessionStatus session[kSessions];
};
static_assert(offsetof(WorkerStatus, session) == 128);

// The listener's end. Sessions' processes get its descriptor and the number of their session.
class StatusFile {
 public:
  // Creates the file, readable only by this user; replaces an old one. `most`: see WorkerStatus.
  static Status create(const std::string& path, size_t most, std::unique_ptr<StatusFile>* file);
  ~StatusFile();
  StatusFile(const StatusFile&) = delete;
  StatusFile& operator=(const StatusFile&) = delete;

  WorkerStatus& all() { return *all_; }
  // Reserves a slot for a session's process that is about to be started; null if all are in use.
  SessionStatus* begin(std::string_view client);
  // The session has ended: adds its numbers to the totals.
  void end(SessionStatus* session);

  int descriptor() const { return descriptor_; }
  size_t number_of(const SessionStatus* session) const { return static_cast<size_t>(session - all_->session); }
  // In a session's process: maps the session's slot, until the process ends. Closes the descriptor. Returns null if
  // this is not a status file.
  static SessionStatus* attach(int descriptor, size_t number);

 private:
  StatusFile(std::string path, int descriptor, WorkerStatus* all)
      : path_(std::move(path)), descriptor_(descriptor), all_(all) {}
  const std::string path_;
  const int descriptor_;
  WorkerStatus* const all_;
};

// Counts the traffic of a session's transport.
class CountingTransport : public remote::ForwardingTransport {
 public:
  CountingTransport(std::unique_ptr<remote::Transport> transport, SessionStatus* counts)
      : ForwardingTransport(std::move(transport)), counts_(counts) {}

  Status send(wire::Header header, std::span<const uint8_t> control, remote::AttachmentPtr attachment) override;
  Status receive(remote::Frame* frame, std::chrono::nanoseconds timeout) override;

 private:
  SessionStatus* const counts_;
  uint64_t busy_since_ = 0;  // 0: it waits.
};

}  // namespace torch_remote::worker
