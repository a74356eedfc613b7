#include "frontend/device/restore.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "frontend/device/worker_names.h"
#include "remote/capture/capture_writer.h"
#include "remote/client/checkpoint.h"
#include "remote/wire/environment.h"

namespace torch_remote::frontend {
namespace {

constexpr std::chrono::seconds kRetryDelay{1};  // delay before the next attempt after unreported failures

struct StoredRestoreOptions {
  std::mutex mutex;
  std::array<std::optional<RestoreOptions>, kMaxWorkers> options;
};

StoredRestoreOptions& stored_options() {
  static auto* instance = new StoredRestoreOptions;
  return *instance;
}

void print_notice(const std::string& what) { std::fprintf(stderr, "remote: %s\n", what.c_str()); }

}  // namespace

void store_restore_options(c10::DeviceIndex device, const RestoreOptions& options) {
  StoredRestoreOptions& all = stored_options();
  const std::lock_guard lock(all.mutex);
  all.options[device] = options;
}

Status restore_options(c10::DeviceIndex device, RestoreOptions* options) {
  StoredRestoreOptions& all = stored_options();
  {
    const std::lock_guard lock(all.mutex);
    if (all.options[device]) {
      *options = *all.options[device];
      return {};
    }
  }
  *options = {};
  options->replay = std::strcmp(remote::environment_value("TORCH_REMOTE_RESTORE"), "replay") == 0;
  options->folder = remote::environment_value("TORCH_REMOTE_RESTORE_FOLDER");
  const char* limit = remote::environment_value("TORCH_REMOTE_RESTORE_LIMIT");
  if (*limit == '\0') return {};
  return remote::parse_bytes("TORCH_REMOTE_RESTORE_LIMIT", limit, &options->limit);
}

Status Restore::wrap(const RestoreOptions& options, Connect connect, std::unique_ptr<remote::Transport>* transport,
                     std::shared_ptr<Restore>* restore) {
  std::shared_ptr<Restore> made(new Restore);
  remote::ReplayOptions replay;
  std::error_code error;
  replay.folder = options.folder.empty() ? std::filesystem::temp_directory_path(error).string() : options.folder;
  replay.limit = options.limit;
  replay.every = options.interval;
  replay.connect = std::move(connect);
  replay.log = print_notice;
  replay.on_due = [it = made] {
    const std::lock_guard lock(it->mutex_);
    if (it->due_ || it->closing_) return;
    it->due_ = true;
    it->changed_.notify_all();
  };
  std::unique_ptr<remote::ReplayTransport> replaying;
  if (Status status = remote::ReplayTransport::open(std::move(*transport), std::move(replay), &replaying); !status) {
    return status;
  }
  made->transport_ = replaying.get();
  *transport = std::move(replaying);
  *restore = std::move(made);
  return {};
}

void Restore::start(remote::Client& client) {
  client_ = &client;
  thread_ = std::thread([this] { loop(); });
}

void Restore::end() {
  const std::lock_guard ending(end_mutex_);
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
  const std::lock_guard lock(checkpoint_mutex_);  // waits for a checkpoint of another thread
}

bool Restore::closing() {
  const std::lock_guard lock(mutex_);
  return closing_;
}

Status Restore::checkpoint(const remote::KeepWaiting& keep_waiting, bool* made) {
  const std::lock_guard lock(checkpoint_mutex_);
  *made = false;
  Status status(ErrorCode::kInterrupted, "");
  if (!closing()) status = make_checkpoint([&] { return !closing() && keep_waiting(); }, made);
  if (!closing() || status.code() != ErrorCode::kInterrupted) return status;
  return {ErrorCode::kInterrupted,
          "remote: checkpoint() was interrupted, because restart() ended the worker; call checkpoint() again after the "
          "next worker has started"};
}

Status Restore::make_checkpoint(const remote::KeepWaiting& keep_waiting, bool* made) {
  if (Status status = transport_->begin_checkpoint(); !status) return status;
  std::vector<remote::CheckpointBuffer> buffers;
  Status status = client_->checkpoint().begin(keep_waiting, made, &buffers);
  for (size_t i = 0; status.ok() && i < buffers.size(); ++i) {
    const auto take = [&](std::span<const std::byte> bytes) { return transport_->add_buffer(buffers[i].id, bytes); };
    status = client_->checkpoint().read(buffers[i], take, keep_waiting);
  }
  if (status.ok() && *made) {
    status = transport_->commit_checkpoint();
  } else {
    transport_->abandon_checkpoint();
  }
  if (*made) {
    const Status dropped = client_->checkpoint().drop(keep_waiting);
    if (status.ok()) status = dropped;
  }
  return status;
}

void Restore::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return due_ || closing_; });
    if (closing_) return;
    due_ = false;  // a request that comes during the checkpoint is for another one
    lock.unlock();
    bool kept = true;
    if (transport_->checkpoint_due()) {
      const Status status = checkpoint([] { return true; }, &kept);
      if (!status.ok() && status.code() != ErrorCode::kLost && status.code() != ErrorCode::kInterrupted) {
        print_notice("a checkpoint for restore='replay' failed: " + status.message());
        kept = false;
      }
    }
    lock.lock();
    if (!kept) changed_.wait_for(lock, kRetryDelay, [&] { return closing_; });
  }
}

}  // namespace torch_remote::frontend
