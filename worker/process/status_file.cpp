#include "worker/process/status_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

namespace torch_remote::worker {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

uint64_t now() {
  return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1));
}

// Only one thread writes, so the load and the store need not be atomic together.
void add(std::atomic<uint64_t>& to, uint64_t value) { to.store(to.load(kRelaxed) + value, kRelaxed); }

uint64_t size_of(std::span<const uint8_t> control, const remote::AttachmentPtr& attachment) {
  return sizeof(wire::Header) + control.size() + (attachment ? attachment->bytes().size() : 0);
}

}  // namespace

Status StatusFile::create(const std::string& path, size_t most, std::unique_ptr<StatusFile>* file) {
  const auto failed = [&path] {
    return Status::invalid("remote: cannot write the status file " + path + ": " + std::strerror(errno));
  };
  // Writes under another name until the file is complete, and never through an existing link.
  const std::string partial = path + ".part";
  (void)unlink(partial.c_str());
  const int descriptor = open(partial.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (descriptor < 0) return failed();
  void* memory = MAP_FAILED;
  if (ftruncate(descriptor, sizeof(WorkerStatus)) == 0) {
    memory = mmap(nullptr, sizeof(WorkerStatus), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  if (memory == MAP_FAILED) {
    const Status status = failed();
    close(descriptor);
    return status;
  }
  auto* all = static_cast<WorkerStatus*>(memory);
  all->process = static_cast<uint64_t>(getpid());
  all->most = most;
  all->magic = WorkerStatus::kMagic;
  file->reset(new StatusFile(path, descriptor, all));
  return rename(partial.c_str(), path.c_str()) == 0 ? Status() : failed();
}

SessionStatus* StatusFile::attach(int descriptor, size_t number) {
  void* memory = MAP_FAILED;
  if (number < WorkerStatus::kSessions) {
    memory = mmap(nullptr, sizeof(WorkerStatus), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  }
  close(descriptor);
  return memory == MAP_FAILED ? nullptr : &static_cast<WorkerStatus*>(memory)->session[number];
}

StatusFile::~StatusFile() {
  munmap(all_, sizeof(WorkerStatus));
  close(descriptor_);
  unlink(path_.c_str());
}

SessionStatus* StatusFile::begin(std::string_view client) {
  for (SessionStatus& session : all_->session) {
    if (session.began.load(kRelaxed) != 0) continue;
    const size_t length = std::min(client.size(), sizeof(session.client) - 1);
    std::memcpy(session.client, client.data(), length);
    session.client[length] = '\0';
    session.last_message.store(now(), kRelaxed);
    session.began.store(static_cast<uint64_t>(std::time(nullptr)), std::memory_order_release);
    return &session;
  }
  return nullptr;
}

void StatusFile::end(SessionStatus* session) {
  if (session == nullptr) return;
  const auto move = [](std::atomic<uint64_t>& from, std::atomic<uint64_t>& to) {
    add(to, from.load(kRelaxed));
    from.store(0, kRelaxed);
  };
  move(session->messages, all_->messages);
  move(session->bytes_in, all_->bytes_in);
  move(session->bytes_out, all_->bytes_out);
  move(session->busy, all_->busy);
  session->process.store(0, kRelaxed);
  session->began.store(0, std::memory_order_release);
}

Status CountingTransport::send(wire::Header header, std::span<const uint8_t> control,
                               remote::AttachmentPtr attachment) {
  const uint64_t bytes = size_of(control, attachment);
  Status status = inner().send(header, control, std::move(attachment));
  // A device may answer from a thread of its own.
  if (status.ok()) counts_->bytes_out.fetch_add(bytes, kRelaxed);
  return status;
}

Status CountingTransport::receive(remote::Frame* frame, std::chrono::nanoseconds timeout) {
  // A receive without waiting, in the middle of a run, does not end the work.
  const bool waits = timeout != std::chrono::nanoseconds::zero();
  if (busy_since_ != 0) {
    const uint64_t until = now();
    add(counts_->busy, until - busy_since_);
    busy_since_ = waits ? 0 : until;
  }
  Status status = inner().receive(frame, timeout);
  if (!status.ok()) return status;
  busy_since_ = now();
  counts_->last_message.store(busy_since_, kRelaxed);
  add(counts_->messages, 1);
  add(counts_->bytes_in, size_of(frame->control, frame->attachment));
  return status;
}

}  // namespace torch_remote::worker
