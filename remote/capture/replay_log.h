#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/status.h"
#include "remote/capture/capture_writer.h"

// A log on disk of one session, from which another worker can rebuild the session's state. It has the programs, the
// contents of buffers at the last checkpoint, and the messages since then. The files are captures (capture_format.h)
// that are unlinked, so they disappear when the process ends.
namespace torch_remote::remote {

struct LoggedFrame {
  wire::Header header;
  std::span<const uint8_t> control;
  std::span<const std::byte> attachment;
};

// Thread safe.
class ReplayLog {
 public:
  // Creates `folder` if it does not exist. `limit`: maximum bytes of messages since the last cut(). Programs do not
  // count.
  static Status open(const std::string& folder, uint64_t limit, std::unique_ptr<ReplayLog>* log);

  // Appends the message that the client sends next. Returns an error if it cannot be logged: the limit is reached, the
  // disk is full, or the log was unusable already. The log is then unusable until a checkpoint is committed that was
  // cut later. If a program cannot be logged, the log stays unusable.
  Status append(const wire::Header& header, std::span<const uint8_t> control, std::span<const std::byte> attachment);
  // Marks an appended message as not sent. A message of another type may then take its sequence.
  void forget(const wire::Header& header);
  // Starts a new checkpoint, which follows the messages that were appended so far. Messages appended from now on come
  // after it.
  Status cut();
  // Records that the messages so far cannot be repeated, and why. The log is unusable until a checkpoint is committed
  // that was cut later.
  void mark_not_repeatable(const std::string& why);
  // Returns ok, or the reason why the session cannot be rebuilt from this log.
  Status usable() const;
  // False if no checkpoint can make the log usable, because it lacks a program.
  bool may_become_usable() const;
  // Bytes of messages since the last checkpoint, or since cut() while a new checkpoint is being made.
  uint64_t size() const;

  // Write the checkpoint that cut() started: begin it, add the contents of all buffers, then commit or abandon it. If
  // it is abandoned, the previous checkpoint and all messages since then stay in the log.
  Status begin_checkpoint();
  Status add_buffer(uint64_t buffer, std::span<const std::byte> bytes);
  Status commit_checkpoint();
  void abandon_checkpoint();

  // A reader's position. While a reader uses it, no checkpoint may be committed: see hold_checkpoints().
  struct Position {
    size_t file = 0;
    uint64_t offset = 0;
  };
  // Is called for each frame, whose bytes are valid only during the call. An error ends the visit, which returns it.
  using Visit = std::function<Status(const LoggedFrame&)>;
  // Visits all programs that a message since the last checkpoint may run, then the buffers of that checkpoint.
  Status visit_state(const Visit& visit) const;
  // Visits the messages from *position on, except those that forget() named. Moves *position behind the last one, or to
  // the one whose visit failed.
  Status visit_messages(Position* position, const Visit& visit) const;
  // While this lock is held, commit_checkpoint waits.
  std::unique_lock<std::mutex> hold_checkpoints() { return std::unique_lock(reading_); }

  // For a forked child: see CaptureWriter::abandon.
  void abandon();

 private:
  struct File {
    std::shared_ptr<CaptureWriter> writer;
    int descriptor = -1;  // for reading
    ~File();
  };
  using FilePtr = std::shared_ptr<File>;
  ReplayLog(std::string folder, uint64_t limit) : folder_(std::move(folder)), limit_(limit) {}
  Status make(FilePtr* file) const;
  Status programs_usable() const;  // requires mutex_
  uint64_t size_locked() const;    // requires mutex_
  // Requires mutex_. Removes programs that were dropped before the last checkpoint, if they are at least half of all.
  void compact();
  // Requires reading_ and mutex_. Moves all messages to the first file.
  void merge_messages();
  static Status visit_file(const File& file, uint64_t* offset, const Visit& visit);

  const std::string folder_;
  const uint64_t limit_;
  std::mutex reading_;  // taken before mutex_
  mutable std::mutex mutex_;
  FilePtr programs_, state_, next_state_;
  std::vector<FilePtr> messages_;
  size_t cut_at_ = 0;                                 // index of the first file after the checkpoint that is being made
  std::set<std::pair<uint64_t, uint8_t>> forgotten_;  // sequences and types
  // Programs that the client dropped after the last checkpoint. `dropped_since_cut_` has those dropped after the cut()
  // of the checkpoint that is being made.
  std::vector<uint32_t> dropped_, dropped_since_cut_;
  std::set<uint32_t> dropped_before_checkpoint_;  // dropped before the last checkpoint, but still in programs_
  size_t program_count_ = 0;                      // number of programs in programs_
  std::string not_repeatable_, not_repeatable_since_cut_;
  bool cutting_ = false;
};

}  // namespace torch_remote::remote
