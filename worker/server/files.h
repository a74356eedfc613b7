#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ir/status.h"

// Files of this machine that a worker reads for its clients, if it was started to do so. A client is not trusted with
// anything: it names a path, a version, an offset and a size, and learns nothing of what lies outside of the folder.
namespace torch_remote::worker {

struct FileVersion {
  uint64_t size = 0;  // bytes
  uint64_t inode = 0;
  int64_t modified = 0;  // ns since 1970
  bool operator==(const FileVersion&) const = default;
};

// An open file. It is read, not mapped: one that gets shorter meanwhile is an error, and not a signal.
class OpenFile {
 public:
  OpenFile() = default;
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;

  const FileVersion& version() const { return version_; }
  // All of `bytes`, from `offset` on.
  Status read(uint64_t offset, std::span<std::byte> bytes) const;

 private:
  friend class Files;
  int descriptor_ = -1;
  FileVersion version_;
};

// Thread safe.
class Files {
 public:
  // `folder`: what lies in it, however deep, may be read, where this process may. An error if there is no such folder.
  static Status in(const std::string& folder, std::shared_ptr<const Files>* files);

  // A regular file whose real path, behind all links, is in the folder. Messages name no path that the client does not
  // know.
  Status open(const std::string& path, OpenFile* file) const;
  // Likewise; of this version and no other, and with so many bytes from `offset` on.
  Status open(const std::string& path, const FileVersion& version, uint64_t offset, uint64_t size,
              OpenFile* file) const;

 private:
  explicit Files(std::string folder) : folder_(std::move(folder)) {}
  const std::string folder_;  // the real path, with a slash at its end
};

// Why a worker without Files reads none.
Status no_files();

}  // namespace torch_remote::worker
