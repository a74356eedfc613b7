#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "remote/client/program_cache.h"
#include "remote/client/replies.h"
#include "remote/client/types.h"
#include "remote/transport/transport.h"

// Puts messages on the way, in order. As long as no program is being built that is the caller's thread; what is sent
// while one is queues behind it and goes out on the builder's thread.
namespace torch_remote::remote {

// A run, as far as the outbox must know it if its program cannot be built.
struct RunInfo {
  ProgramPtr program;
  uint64_t base = 0;
  uint64_t made = 0;  // buffers from base on
};

// A trace, or a graph, whose program the worker does not have.
struct BuildJob {
  ir::Trace trace;
  std::vector<uint64_t> survivors;
  std::shared_ptr<const ir::Graph> graph;  // null: the trace
  std::vector<int64_t> sample;             // of the graph
  uint64_t load_sequence = 0;              // of its LoadProgram message
};

class Outbox {
 public:
  // Control bytes sent so far are counted in `bytes_sent`, programs in `programs_built`.
  // `worker` does not change once a program is built.
  Outbox(Transport& transport, Replies& replies, BuildFunction build, const ir::Capabilities& worker,
         std::atomic<uint64_t>& bytes_sent, std::atomic<uint64_t>& programs_built);
  ~Outbox() { end(); }
  // Ends the builder's thread after what it builds now; what still waits is not sent. Returns the sequence of the last
  // message that was, 0 if none.
  uint64_t end();

  // One thread at a time calls these two. Messages that wait are copied. For a Run, `run` is set.
  Status send(const wire::Header& header, std::span<const uint8_t> control, AttachmentPtr attachment,
              const RunInfo* run = nullptr);
  // Builds the program and sends LoadProgram; this header is like those of the messages to send.
  void build(std::unique_ptr<BuildJob> job, const wire::Header& header, ProgramPtr program);
  // Builds the program, sends LoadProgram and then this Run message. If that fails: a Free message in its place, so
  // that the buffers it would have freed are, and Replies::fail.
  void build_and_send(std::unique_ptr<BuildJob> job, const wire::Header& header, std::span<const uint8_t> control,
                      const RunInfo& run);

  // Exchanges `trace` for an empty one, with capacity if one came back from the builder. The job gets the old one.
  std::unique_ptr<BuildJob> job_for(ir::Trace& trace);

 private:
  struct Item {
    wire::Header header;
    std::vector<uint8_t> control;  // empty: nothing is sent but the program
    AttachmentPtr attachment;
    RunInfo run;
    std::unique_ptr<BuildJob> job;
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
  bool busy_ = false;  // the builder's thread has messages that were not sent yet
  bool ending_ = false;
  std::vector<std::unique_ptr<BuildJob>> spare_;
  std::thread builder_;
  uint64_t last_sent_ = 0;  // of whoever sends now: the caller, or the builder while busy_
};

}  // namespace torch_remote::remote
