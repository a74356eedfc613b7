#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "remote/client/program_cache.h"
#include "remote/client/replies.h"
#include "remote/client/types.h"
#include "remote/transport/transport.h"

// Sends messages in order. While no program is being built, they are sent on the caller's thread. While a program is
// being built, later messages wait in a queue, and the builder's thread sends them afterwards.
namespace torch_remote::remote {

// Describes a run, so that the outbox can fail its buffers if its program cannot be built.
struct RunInfo {
  ProgramPtr program;
  uint64_t first_result_id = 0;
  uint64_t made = 0;                        // number of buffers that the run creates, from `first_result_id` on
  std::span<const uint64_t> consumed = {};  // the input buffers that the run frees
};

// A trace or graph whose program the worker does not have.
struct BuildJob {
  ir::Trace trace;
  std::vector<uint64_t> survivors;
  std::shared_ptr<const ir::Graph> graph;  // null: use the trace
  std::vector<int64_t> sample;             // typical parameters of the graph; unused for a trace
  uint64_t load_sequence = 0;              // of the LoadProgram message
};

class Outbox {
 public:
  // `bytes_sent` and `programs_built` are counters, which the outbox increases: control bytes that it sent, and
  // programs that it built. `worker` must not change once a program is built.
  Outbox(Transport& transport, Replies& replies, BuildFunction build, const ir::Capabilities& worker,
         std::atomic<uint64_t>& bytes_sent, std::atomic<uint64_t>& programs_built);
  ~Outbox() { end(); }
  // Ends the builder's thread after its current build and the messages of that build; later messages are not sent.
  // Returns the sequence of the last message that this outbox sent, 0 if none.
  uint64_t end();

  // The following functions must be called by one thread at a time.

  // Sends or queues a message. A queued message is copied. A Run message needs `run`. Returns kOutOfMemory if there is
  // no memory to send it, and kLost if the connection is lost. Failures of queued messages are reported to `replies`.
  Status send(const wire::Header& header, std::span<const uint8_t> control, AttachmentPtr attachment,
              const RunInfo* run = nullptr);
  // Builds the program on the builder's thread and sends LoadProgram. If the build fails, it sets program->failure and
  // sends an empty Free message instead. `header` has the session of the messages to send.
  void build(std::unique_ptr<BuildJob> job, const wire::Header& header, ProgramPtr program);
  // Builds the program on the builder's thread, then sends LoadProgram and this Run message. If the build fails, it
  // sends two Free messages instead, so that what the run would have freed is freed and sequences have no gaps. It then
  // calls Replies::fail.
  void build_and_send(std::unique_ptr<BuildJob> job, const wire::Header& header, std::span<const uint8_t> control,
                      const RunInfo& run);

  // Moves `trace` into a new job and leaves an empty trace, with the capacity of an earlier job's trace if there is
  // one.
  std::unique_ptr<BuildJob> job_for(ir::Trace& trace);

 private:
  struct Item {
    wire::Header header;
    std::vector<uint8_t> control;  // empty: only the program is sent
    AttachmentPtr attachment;
    RunInfo run;
    std::unique_ptr<BuildJob> job;
    std::vector<uint64_t> consumed;  // the ids of run.consumed, which push() copies
  };

  void push(Item item);
  void builder_loop();
  void send_item(Item& item);
  Status build_program(BuildJob& job, const RunInfo& run, const wire::Header& header);
  Status send_now(const wire::Header& header, std::span<const uint8_t> control, AttachmentPtr attachment);
  void send_failed_run(Item& item, const BuildJob* job, const Status& why);

  Transport& transport_;
  Replies& replies_;
  const BuildFunction build_;
  const ir::Capabilities& worker_;
  std::atomic<uint64_t>& bytes_sent_;
  std::atomic<uint64_t>& programs_built_;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Item> items_;
  bool busy_ = false;  // the builder's thread has messages that are not sent yet
  bool ending_ = false;
  std::vector<std::unique_ptr<BuildJob>> spare_;
  std::thread builder_;
  uint64_t last_sent_ = 0;  // written by the sending thread: the caller's, or the builder's while busy_
};

}  // namespace torch_remote::remote
