#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ir/status.h"
#include "remote/capture/capture_writer.h"

// What a client sent, on disk, as far as another worker must hear it to come to the same state: its programs, what
// buffers held at the last checkpoint, and the messages since. The files are captures (capture_format.h) that have no
// name any more, so nothing is left of them when the process ends.
namespace torch_remote::remote {

struct LoggedFrame {
  wire::Header header;
  std::span<const uint8_t> control;
  std::span<const std::byte> attachment;
};

// Thread safe.
class ReplayLog {
 public:
  // `folder` is made if it is not there; `limit`: bytes of messages since a checkpoint that are written at most.
  static Status open(const std::string& folder, uint64_t limit, std::unique_ptr<ReplayLog>* log);

  // A message that goes out next. Not ok: it could not be written, and the log is of no use until the next checkpoint.
  Status append(const wire::Header& header, std::span<const uint8_t> control, std::span<const std::byte> attachment);
  // One that was appended did not go out after all.
  void forget(uint64_t sequence);
  // What is appended from here on comes behind the checkpoint that `begin_checkpoint` began.
  Status cut();
  // The messages before this one cannot be repeated: only what a later checkpoint holds counts.
  void spoil(const std::string& why);
  // Ok, or why the session cannot be rebuilt from this.
  Status usable() const;
  // Bytes of messages since the last checkpoint.
  uint64_t size() const;

  // A checkpoint, after cut: its buffers, then commit, or abandon.
  Status begin_checkpoint();
  Status add_buffer(uint64_t buffer, std::span<const std::byte> bytes);
  Status commit_checkpoint();
  void abandon_checkpoint();

  // Where a reader is. The log must not get another checkpoint meanwhile: hold_checkpoints.
  struct Place {
    size_t file = 0;
    uint64_t offset = 0;
  };
  using Visit = std::function<Status(const LoggedFrame&)>;
  // All programs that a message since the last checkpoint may run, then that checkpoint's buffers.
  Status visit_state(const Visit& visit) const;
  // The messages from `place` on, which is moved behind those that were visited.
  Status visit_messages(Place* place, const Visit& visit) const;
  // While one of these lives, commit_checkpoint waits.
  std::unique_lock<std::mutex> hold_checkpoints() { return std::unique_lock(reading_); }

  void abandon();

 private:
  struct File {
    std::shared_ptr<CaptureWriter> writer;
    int descriptor = -1;  // to read
    ~File();
  };
  using FilePtr = std::shared_ptr<File>;
  ReplayLog(std::string folder, uint64_t limit) : folder_(std::move(folder)), limit_(limit) {}
  Status make(FilePtr* file) const;
  // With mutex_ held: programs that were dropped before the last checkpoint go, if they are most of what is there.
  void compact();
  static Status visit_file(const File& file, uint64_t* offset, const Visit& visit);

  const std::string folder_;
  const uint64_t limit_;
  std::mutex reading_;  // before mutex_
  mutable std::mutex mutex_;
  FilePtr programs_, state_, next_state_;
  std::vector<FilePtr> messages_;
  size_t cut_at_ = 0;  // index of the file that begins behind the checkpoint that is being made
  std::set<uint64_t> forgotten_;
  // Programs that were dropped: since the last checkpoint, behind the one that is being made, before the last one.
  std::vector<uint32_t> dropped_, dropped_since_cut_;
  std::set<uint32_t> gone_;
  size_t program_count_ = 0;  // in programs_
  std::string spoiled_, spoiled_since_cut_;
  bool cutting_ = false;
};

}  // namespace torch_remote::remote
