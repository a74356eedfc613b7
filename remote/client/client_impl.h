#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "flatbuffers/flatbuffers.h"
#include "remote/client/checkpoint.h"
#include "remote/client/client.h"
#include "remote/client/outbox.h"
#include "remote/client/program_cache.h"
#include "remote/client/read_view.h"
#include "remote/client/replies.h"
#include "remote/client/speculative_reads.h"

// The client over one transport: client_impl.cpp connects and sends, client_read.cpp reads buffers.
namespace torch_remote::remote {

struct AtomicCounters {
  std::atomic<uint64_t> flushes{0}, programs_built{0}, program_hits{0}, programs_dropped{0}, round_trips{0},
      connections{0}, bytes_sent{0}, bytes_uploaded{0}, bytes_downloaded{0};
};

// Locks: order_ defines the order of messages and is held while a message is encoded and sent. freed_ids_mutex_ guards
// the list that destructors append to. Replies, Outbox and ProgramCache have their own locks, which are taken after
// these two, each for a short time.
class ClientImpl final : public Client {
 public:
  ClientImpl(std::unique_ptr<Transport> transport, BuildFunction build)
      : transport_(std::move(transport)),
        replies_(*transport_, programs_),
        outbox_(*transport_, replies_, std::move(build), capabilities_, counters_.bytes_sent,
                counters_.programs_built) {}

  ~ClientImpl() override;

  Status hello(const KeepWaiting& keep_waiting);

  Status flush(ir::Trace& trace, uint64_t* first_result_id, FlushInfo* info, uint64_t* ticket) override;
  Status load(std::shared_ptr<const ir::Graph> graph, std::vector<ir::SourceRef> sources,
              std::span<const int64_t> sample, const ProgramOptions& options, ProgramPtr* program) override;
  void limit_programs(uint64_t bytes) override;
  Status run(const ProgramPtr& program, const RunArguments& arguments, uint64_t* first_result_id, FlushInfo* info,
             uint64_t* ticket) override;
  Status wait_results(uint64_t ticket, ResultWords* result_words, const KeepWaiting& keep_waiting,
                      OpError* error) override;
  Status upload(size_t size, const std::function<void(std::byte*)>& fill, uint64_t* id) override;
  Status find_file(std::string_view path, const KeepWaiting& keep_waiting, FoundFile* file) override;
  Status read_file(std::string_view path, const FileVersion& version, uint64_t offset, uint64_t size,
                   uint64_t* id) override;
  Status call_function(std::span<const std::byte> request, const std::vector<CallInput>& inputs, uint64_t* ticket,
                       uint64_t* first_result_id) override;
  Status wait_function(uint64_t ticket, const KeepWaiting& keep_waiting, CallResult* result, OpError* error) override;
  Status cancel_function(uint64_t ticket, bool kill) override;
  Status drop_function_results(uint64_t ticket, uint64_t first_result_id) override;
  Status read(uint64_t buffer, uint32_t item_size, std::span<const int64_t> sizes, std::span<const int64_t> strides,
              int64_t offset, const std::function<void(std::span<const std::byte>)>& take,
              const KeepWaiting& keep_waiting, OpError* error) override;
  void free(uint64_t id) override;
  Status synchronize(const KeepWaiting& keep_waiting, OpError* error) override;
  Status memory(const MemoryRequest& request, const KeepWaiting& keep_waiting, MemoryLimits* limits) override;
  Status cancel() override;
  Status throttle(const KeepWaiting& keep_waiting) override {
    return abandoned_ ? forked() : replies_.throttle(keep_waiting);
  }
  Status record_event(uint64_t* ticket) override;
  bool is_reached(uint64_t ticket) override;
  Status wait_event(uint64_t ticket, const KeepWaiting& keep_waiting, RecordedEvent* event) override;
  bool is_idle() override;
  void forget(uint64_t ticket) noexcept override;
  Status has_op(std::string_view name, const KeepWaiting& keep_waiting, bool* has, OpError* error) override;

  Status profile(ProfileCommand command, uint64_t limit, const KeepWaiting& keep_waiting,
                 WorkerProfile* profile) override;

  Counters counters() const override;
  void reset_counters() override;
  MemoryUse memory_use() const override { return abandoned_ ? MemoryUse() : replies_.totals().memory; }
  MachineInfo machine() const override { return machine_; }
  Status health() const override { return abandoned_ ? forked() : replies_.health(); }
  std::string description() const override;
  uint64_t session() const override { return session_; }
  uint64_t last_acknowledged() const override { return replies_.acknowledged(); }
  uint64_t last_sent() const override { return replies_.last_sent(); }

  void abandon() override {
    abandoned_ = true;
    transport_->abandon();
  }

 private:
  static Status forked() {
    return {ErrorCode::kLost,
            "remote: the worker belongs to the process that this one was forked from; use the 'spawn' start method"};
  }

  wire::Header header(wire::Type type, uint64_t sequence, uint16_t flags) const {
    wire::Header h;
    h.type = static_cast<uint8_t>(type);
    h.flags = flags;
    h.session = session_;
    h.sequence = sequence;
    return h;
  }

  // The following require order_.
  // Handles messages that have arrived, checks health, and reserves space in flight (Replies::reserve) for `messages`
  // and for a list of frees before them.
  Status begin(size_t messages, size_t bytes);
  // Moves the pending frees to freed_ids_now_ and encodes them to freed_ids_bytes_.
  void take_freed_ids();
  Status send_freed_ids();
  // Sends the message in builder_. With `wants_reply`, the caller will wait for the reply.
  Status send(wire::Type type, bool wants_reply, AttachmentPtr attachment, uint64_t* sequence);
  // Before a program is added: drops programs beyond the limit, here and on the worker.
  Status drop_programs();
  // Sets copies_: the buffers that the next trace creates as copies of its inputs.
  void find_copies(const CachedProgram& program, const ir::Trace& trace);
  // Encodes a Run message with inputs_ and the pending frees.
  std::span<const uint8_t> encode_run(CachedProgram& program, std::span<const int64_t> now, uint64_t first_result_id,
                                      ir::MathModes math_modes);
  void count_flush(const CachedProgram& program, bool hit, std::span<const uint8_t> control, FlushInfo* info);
  // The header of the next message, a Run. With a ticket, the caller will wait for the reply.
  wire::Header run_header(uint64_t* ticket, FlushInfo* info);
  void log_run(const FlushInfo& info, const std::vector<ir::SourceRef>& sources) const;

  // The counters since the connection was made.
  Counters all_counters() const;

  // The following must be called without order_.
  Status wait(uint64_t sequence, const KeepWaiting& keep_waiting, Frame* reply, OpError* error,
              bool keep_expecting = false);
  // Sends a message that wants a reply; `encode` writes it into builder_ with order_ held.
  template <typename Encode>
  Status send_request(wire::Type type, Encode&& encode, uint64_t* sequence);
  // The same, then waits for the reply.
  template <typename Encode>
  Status ask(wire::Type type, Encode&& encode, const KeepWaiting& keep_waiting, Frame* reply, OpError* error);

  // client_checkpoint.cpp
  friend Status begin_checkpoint(Client&, const KeepWaiting&, bool*, std::vector<CheckpointBuffer>*);
  friend Status read_checkpoint(Client&, const CheckpointBuffer&, const TakeBytes&, const KeepWaiting&);
  friend Status drop_checkpoint(Client&, const KeepWaiting&);

  // Reads (client_read.cpp). The following require order_.
  // Sends a Read. `speculative` marks a speculative read, for which nobody waits yet.
  Status send_read(const ReadView& view, bool speculative, uint64_t* sequence);
  // Sends a Read of a buffer's first `nbytes` bytes, which are cached: *snapshot.
  Status send_read_whole(uint64_t buffer, uint64_t nbytes, bool speculative, SnapshotPtr* snapshot);
  // Send speculative reads. The first function may only follow a message for which begin() reserved space for the
  // reads, too; the second one reserves it.
  Status send_guesses(const std::vector<SpeculativeReads::Guess>& guesses);
  Status reserve_and_send_guesses(const std::vector<SpeculativeReads::Guess>& guesses);
  // Sends a Read of a view, which is in the first `end` bytes of its buffer, unless the bytes are cached or already
  // requested. Also sends reads of what is likely to be read next. If *snapshot is not null afterwards, it will contain
  // the view's bytes; otherwise the reply to `sequence` has only the view.
  Status ask_for(const ReadView& view, uint64_t end, uint64_t* sequence, SnapshotPtr* snapshot);
  // The following must be called without order_.
  // Waits for the bytes of a snapshot.
  Status wait_for_snapshot(const ReadView& view, Snapshot& snapshot, const KeepWaiting& keep_waiting, OpError* error);
  static Status check_size(const Frame& frame, uint64_t expected);
  // The error to report for a read that failed with `status`.
  Status read_error(uint64_t buffer, Status status, OpError* error) const;

  const std::unique_ptr<Transport> transport_;
  ProgramCache programs_;
  Replies replies_;
  AtomicCounters counters_;
  ir::Capabilities capabilities_;
  Outbox outbox_;
  std::atomic<bool> abandoned_ = false;
  uint64_t session_ = 0;
  std::string description_;  // names the runners
  int process_ = 0, peer_ = 0;
  MachineInfo machine_;

  std::mutex order_;
  uint64_t sequence_ = 0;
  uint64_t next_id_ = 1;
  uint64_t checkpoints_ = 0;
  uint64_t uses_ = 0;  // number of uses of programs so far: the clock of CachedProgram::last_use
  uint64_t most_program_bytes_ = kMaxProgramBytes;
  // Buffers that are reused for their capacity.
  flatbuffers::FlatBufferBuilder builder_{16 << 10};
  SpeculativeReads speculative_reads_;
  std::vector<uint32_t> dropped_;
  std::vector<uint64_t> survivors_, inputs_, made_, freed_ids_now_;
  std::vector<SpeculativeReads::Copy> copies_;
  std::vector<uint8_t> params_, bindings_, freed_ids_bytes_;

  std::mutex freed_ids_mutex_;
  std::vector<uint64_t> freed_ids_;

  mutable std::mutex base_mutex_;
  Counters base_;  // the counters at the last reset
};

template <typename Encode>
Status ClientImpl::send_request(wire::Type type, Encode&& encode, uint64_t* sequence) {
  if (abandoned_) return forked();
  std::lock_guard order(order_);
  if (Status status = begin(1, 0); !status) return status;
  if (Status status = send_freed_ids(); !status) return status;
  builder_.Clear();
  encode();
  return send(type, true, nullptr, sequence);
}

template <typename Encode>
Status ClientImpl::ask(wire::Type type, Encode&& encode, const KeepWaiting& keep_waiting, Frame* reply,
                       OpError* error) {
  uint64_t sequence = 0;
  if (Status status = send_request(type, encode, &sequence); !status) return status;
  return wait(sequence, keep_waiting, reply, error);
}

}  // namespace torch_remote::remote
