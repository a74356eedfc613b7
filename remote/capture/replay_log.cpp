#include "remote/capture/replay_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "remote/capture/session_writer.h"
#include "remote/wire/message.h"

namespace torch_remote::remote {
namespace {

using capture::ChunkHeader;
using capture::ChunkType;

Status damaged(uint64_t offset) {
  return Status::invalid("remote: the log of the session is damaged at byte " + std::to_string(offset));
}

// The number of the program in a LoadProgram message.
uint32_t program_of(const LoggedFrame& frame) {
  const auto* message = wire::verify<wire::LoadProgram>(frame.control);
  return message != nullptr ? message->program() : 0;
}

// Maps a file's bytes up to `size`.
class Mapped {
 public:
  Mapped(int file, uint64_t size) : size_(size), data_(mmap(nullptr, size, PROT_READ, MAP_SHARED, file, 0)) {}
  ~Mapped() {
    if (data_ != MAP_FAILED) munmap(data_, size_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;
  const std::byte* data() const { return data_ == MAP_FAILED ? nullptr : static_cast<const std::byte*>(data_); }

 private:
  uint64_t size_;
  void* data_;
};

}  // namespace

ReplayLog::File::~File() {
  if (descriptor >= 0) ::close(descriptor);
}

Status ReplayLog::open(const std::string& folder, uint64_t limit, std::unique_ptr<ReplayLog>* log) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  std::unique_ptr<ReplayLog> made(new ReplayLog(folder, limit));
  FilePtr first;
  if (Status status = made->make(&made->programs_); !status) return status;
  if (Status status = made->make(&first); !status) return status;
  made->messages_.push_back(std::move(first));
  *log = std::move(made);
  return {};
}

Status ReplayLog::make(FilePtr* file) const {
  // The file gets a new folder, so that nobody else can open it before it is unlinked.
  std::string folder = folder_ + "/torch-remote-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    return Status::invalid("remote: the log of the session in '" + folder_ + "': " + std::strerror(errno));
  }
  const std::string path = folder + "/log";
  auto made = std::make_shared<File>();
  Status status = CaptureWriter::open({path, UINT64_MAX}, &made->writer);
  if (status.ok()) made->descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int error = errno;
  (void)unlink(path.c_str());
  (void)rmdir(folder.c_str());
  if (!status) return status;
  if (made->descriptor < 0) {
    return Status::invalid("remote: the log of the session in '" + folder_ + "': " + std::strerror(error));
  }
  *file = std::move(made);
  return {};
}

Status ReplayLog::append(const wire::Header& header, std::span<const uint8_t> control,
                         std::span<const std::byte> attachment) {
  std::lock_guard lock(mutex_);
  if (header.type == static_cast<uint8_t>(wire::Type::kLoadProgram)) {
    programs_->writer->sent(header, control, attachment);
    ++program_count_;
    return programs_usable();
  }
  if (header.type == static_cast<uint8_t>(wire::Type::kUnloadPrograms)) {
    const auto* message = wire::verify<wire::UnloadPrograms>(control);
    std::vector<uint32_t>& dropped = cutting_ ? dropped_since_cut_ : dropped_;
    if (message != nullptr) dropped.insert(dropped.end(), message->programs()->begin(), message->programs()->end());
  }
  if (Status status = programs_usable(); !status) return status;
  std::string& spoiled = cutting_ ? not_repeatable_since_cut_ : not_repeatable_;
  if (!spoiled.empty()) return Status::invalid(spoiled);
  File& file = *messages_.back();
  const uint64_t more = capture::chunk_bytes(sizeof(header) + control.size(), attachment.size());
  if (size_locked() + more > limit_) {
    spoiled =
        "the log of what was sent since the last checkpoint reached its limit of " + std::to_string(limit_) +
        " bytes before the next checkpoint was complete; call torch.remote.checkpoint() more often, or give a larger "
        "limit";
    return Status::invalid(spoiled);
  }
  file.writer->sent(header, control, attachment);
  if (file.writer->is_open()) return {};
  spoiled = "the log of what was sent could not be written to '" + folder_ + "'";
  return Status::invalid(spoiled);
}

void ReplayLog::forget(const wire::Header& header) {
  std::lock_guard lock(mutex_);
  forgotten_.emplace(header.sequence, header.type);
}

Status ReplayLog::cut() {
  FilePtr file;
  Status status = make(&file);
  std::lock_guard lock(mutex_);
  if (!status) {
    not_repeatable_ = status.message();
    return status;
  }
  messages_.push_back(std::move(file));
  cut_at_ = messages_.size() - 1;
  cutting_ = true;
  not_repeatable_since_cut_.clear();
  return {};
}

void ReplayLog::mark_not_repeatable(const std::string& why) {
  std::lock_guard lock(mutex_);
  if (not_repeatable_.empty()) not_repeatable_ = why;
  if (cutting_ && not_repeatable_since_cut_.empty()) not_repeatable_since_cut_ = why;
}

Status ReplayLog::programs_usable() const {
  if (programs_->writer->is_open()) return {};
  return {ErrorCode::kLost, "a program could not be written to disk in '" + folder_ + "'"};
}

bool ReplayLog::may_become_usable() const {
  std::lock_guard lock(mutex_);
  return programs_usable().ok();
}

Status ReplayLog::usable() const {
  std::lock_guard lock(mutex_);
  if (Status status = programs_usable(); !status) return status;
  const std::string& why = not_repeatable_.empty() && cutting_ ? not_repeatable_since_cut_ : not_repeatable_;
  return why.empty() ? Status() : Status(ErrorCode::kLost, why);
}

uint64_t ReplayLog::size() const {
  std::lock_guard lock(mutex_);
  return size_locked();
}

uint64_t ReplayLog::size_locked() const {
  uint64_t bytes = 0;
  for (size_t i = cutting_ ? cut_at_ : 0; i < messages_.size(); ++i) bytes += messages_[i]->writer->written();
  return bytes;
}

// --- checkpoints -----------------------------------------------------------------------------------------------------

Status ReplayLog::begin_checkpoint() {
  FilePtr file;
  if (Status status = make(&file); !status) return status;
  std::lock_guard lock(mutex_);
  next_state_ = std::move(file);
  return {};
}

Status ReplayLog::add_buffer(uint64_t buffer, std::span<const std::byte> bytes) {
  FilePtr file;
  {
    std::lock_guard lock(mutex_);
    file = next_state_;
  }
  SessionWriter(file->writer).upload(buffer, bytes);
  return file->writer->is_open() ? Status()
                                 : Status::invalid("remote: a checkpoint could not be written to '" + folder_ + "'");
}

Status ReplayLog::commit_checkpoint() {
  const std::lock_guard reading(reading_);
  std::lock_guard lock(mutex_);
  state_ = std::move(next_state_);
  messages_.erase(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(cut_at_));
  cut_at_ = 0;
  cutting_ = false;
  not_repeatable_ = std::exchange(not_repeatable_since_cut_, {});
  dropped_before_checkpoint_.insert(dropped_.begin(), dropped_.end());
  dropped_ = std::exchange(dropped_since_cut_, {});
  compact();
  return {};
}

void ReplayLog::compact() {
  constexpr size_t kFew = 64;
  FilePtr file;
  if (!programs_usable()) return;
  if (dropped_before_checkpoint_.size() < kFew + program_count_ / 2 || !make(&file)) return;
  uint64_t offset = 0;
  size_t count = 0;
  const Status copied = visit_file(*programs_, &offset, [&](const LoggedFrame& frame) {
    if (dropped_before_checkpoint_.contains(program_of(frame))) return Status();
    ++count;
    file->writer->sent(frame.header, frame.control, frame.attachment);
    return Status();
  });
  if (!copied || !file->writer->is_open()) return;  // keep the old file, which is still valid
  programs_ = std::move(file);
  program_count_ = count;
  dropped_before_checkpoint_.clear();
}

void ReplayLog::abandon_checkpoint() {
  // While a reader has a position, the messages keep their files; the next abandoned checkpoint merges these.
  const std::unique_lock reading(reading_, std::try_to_lock);
  std::lock_guard lock(mutex_);
  next_state_ = nullptr;
  cutting_ = false;
  if (not_repeatable_.empty()) not_repeatable_ = std::exchange(not_repeatable_since_cut_, {});
  dropped_.insert(dropped_.end(), dropped_since_cut_.begin(), dropped_since_cut_.end());
  dropped_since_cut_.clear();
  if (reading.owns_lock()) merge_messages();
}

void ReplayLog::merge_messages() {
  CaptureWriter& first = *messages_.front()->writer;
  const auto copy = [&first](const LoggedFrame& frame) {
    first.sent(frame.header, frame.control, frame.attachment);
    return Status();
  };
  // An unusable log needs no messages.
  for (size_t i = 1; i < messages_.size() && not_repeatable_.empty(); ++i) {
    uint64_t offset = 0;
    if (!visit_file(*messages_[i], &offset, copy) || !first.is_open()) {
      not_repeatable_ = "the log of what was sent could not be written to '" + folder_ + "'";
    }
  }
  messages_.resize(1);
}

// --- reading ---------------------------------------------------------------------------------------------------------

Status ReplayLog::visit_file(const File& file, uint64_t* offset, const Visit& visit) {
  const uint64_t size = file.writer->written();
  if (*offset == 0) *offset = sizeof(capture::FileHeader);
  if (*offset >= size) return {};
  const Mapped mapped(file.descriptor, size);
  if (mapped.data() == nullptr) return Status::invalid("remote: the log of the session cannot be read");
  while (*offset < size) {
    ChunkHeader header;
    if (size - *offset < sizeof(header)) return damaged(*offset);
    std::memcpy(&header, mapped.data() + *offset, sizeof(header));
    const uint64_t bytes = capture::chunk_bytes(header.control, header.attachment);
    const uint64_t control = *offset + sizeof(header);
    const uint64_t attachment = *offset + capture::align(sizeof(header) + header.control);
    if (bytes > size - *offset) return damaged(*offset);
    if (wire::crc32c(mapped.data() + control, bytes - sizeof(header)) != header.checksum) return damaged(*offset);
    if (header.type == ChunkType::kSent) {
      LoggedFrame frame;
      if (header.control < sizeof(frame.header)) return damaged(*offset);
      std::memcpy(&frame.header, mapped.data() + control, sizeof(frame.header));
      frame.control = {reinterpret_cast<const uint8_t*>(mapped.data()) + control + sizeof(frame.header),
                       header.control - sizeof(frame.header)};
      frame.attachment = {mapped.data() + attachment, header.attachment};
      if (Status status = visit(frame); !status) return status;
    }
    *offset += bytes;
  }
  return {};
}

Status ReplayLog::visit_state(const Visit& visit) const {
  FilePtr programs, state;
  std::set<uint32_t> gone;
  {
    std::lock_guard lock(mutex_);
    programs = programs_;
    state = state_;
    gone = dropped_before_checkpoint_;
  }
  uint64_t offset = 0;
  Status status = visit_file(*programs, &offset, [&](const LoggedFrame& frame) {
    return gone.contains(program_of(frame)) ? Status() : visit(frame);
  });
  if (!status || !state) return status;
  offset = 0;
  return visit_file(*state, &offset, visit);
}

Status ReplayLog::visit_messages(Position* position, const Visit& visit) const {
  for (;;) {
    FilePtr file;
    bool last;
    {
      std::lock_guard lock(mutex_);
      if (position->file >= messages_.size()) return {};
      file = messages_[position->file];
      last = position->file + 1 == messages_.size();
    }
    const auto visit_sent = [&](const LoggedFrame& frame) {
      {
        std::lock_guard lock(mutex_);
        if (forgotten_.contains({frame.header.sequence, frame.header.type})) return Status();
      }
      return visit(frame);
    };
    if (Status status = visit_file(*file, &position->offset, visit_sent); !status || last) return status;
    *position = {position->file + 1, 0};
  }
}

void ReplayLog::abandon() {
  for (const FilePtr& file : {programs_, state_, next_state_}) {
    if (file) file->writer->abandon();
  }
  for (const FilePtr& file : messages_) file->writer->abandon();
}

}  // namespace torch_remote::remote
