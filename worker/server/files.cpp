#include "worker/server/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

namespace torch_remote::worker {
namespace {

constexpr size_t kMostAtOnce = size_t{1} << 30;  // Bytes; read() takes no more than 2 GiB.

Status refused(const std::string& path, const std::string& why) {
  return {ErrorCode::kUnsupported, "remote: the worker does not read '" + path + "': " + why};
}

FileVersion version_of(const struct stat& about) {
  return {static_cast<uint64_t>(about.st_size), static_cast<uint64_t>(about.st_ino),
          int64_t{about.st_mtim.tv_sec} * 1'000'000'000 + about.st_mtim.tv_nsec};
}

// The path of an open descriptor, with all links resolved; empty if it is not known.
std::string real_path(int descriptor) {
  char path[PATH_MAX];
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(descriptor)).c_str(), path, sizeof(path));
  return size > 0 && static_cast<size_t>(size) < sizeof(path) ? std::string(path, static_cast<size_t>(size)) : "";
}

}  // namespace

OpenFile::~OpenFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

OpenFile::OpenFile(OpenFile&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), version_(other.version_) {}

OpenFile& OpenFile::operator=(OpenFile&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  version_ = other.version_;
  return *this;
}

Status OpenFile::read(uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count =
        pread(descriptor_, bytes.data(), std::min(bytes.size(), kMostAtOnce), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return system_error("the worker cannot read a file");
    if (count == 0) {
      return {ErrorCode::kUnsupported, "remote: a file became shorter while the worker read it; load it again"};
    }
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return {};
}

Status Files::in(const std::string& folder, std::shared_ptr<const Files>* files) {
  char* const found = realpath(folder.c_str(), nullptr);
  std::string real = found ? found : "";
  const int why = errno;
  std::free(found);
  struct stat about;
  if (real.empty() || stat(real.c_str(), &about) != 0 || !S_ISDIR(about.st_mode)) {
    return Status::invalid("remote: --allow-files=" + folder +
                           " is no folder: " + std::strerror(real.empty() ? why : ENOTDIR));
  }
  if (!real.ends_with('/')) real += '/';
  *files = std::shared_ptr<const Files>(new Files(std::move(real)));
  return {};
}

Status Files::open(const std::string& path, OpenFile* file) const {
  if (path.empty() || path.size() >= PATH_MAX || path.find('\0') != std::string::npos) {
    return refused("", "that is no path");
  }
  // Checked before the file is opened, so that a client cannot probe for files outside of the folder.
  const std::string named = (std::filesystem::path(folder_) / path).lexically_normal();
  if (!named.starts_with(folder_)) return refused(path, "it is outside of the folder that --allow-files names");
  // One answer, so that a link which leads outside does not show what exists behind it.
  const Status missing = refused(path, "it does not exist, or is outside of the folder that --allow-files names");
  OpenFile place(::open(named.c_str(), O_PATH | O_CLOEXEC));  // O_PATH opens no device and does not wait for a pipe.
  if (place.descriptor_ < 0 && folder_ == "/") return refused(path, std::strerror(errno));  // Nothing is outside.
  if (place.descriptor_ < 0 || !real_path(place.descriptor_).starts_with(folder_)) return missing;
  struct stat about;
  if (fstat(place.descriptor_, &about) != 0 || !S_ISREG(about.st_mode)) return refused(path, "it is no regular file");
  OpenFile opened(::open(("/proc/self/fd/" + std::to_string(place.descriptor_)).c_str(), O_RDONLY | O_CLOEXEC));
  if (opened.descriptor_ < 0) return refused(path, std::strerror(errno));
  opened.version_ = version_of(about);
  *file = std::move(opened);
  return {};
}

Status Files::open(const std::string& path, const FileVersion& version, uint64_t offset, uint64_t size,
                   OpenFile* file) const {
  if (Status status = open(path, file); !status.ok()) return status;
  if (file->version() != version) return refused(path, "it was changed meanwhile; load it again");
  if (size <= version.size && offset <= version.size - size) return {};
  return refused(path, "it ends before byte " + std::to_string(offset) + " + " + std::to_string(size));
}

Status no_files() {
  return {ErrorCode::kUnsupported,
          "remote: the worker reads no files for its clients; start it with --allow-files=FOLDER"};
}

}  // namespace torch_remote::worker
