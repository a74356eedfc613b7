#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "ir/status.h"

// Files of this machine that a worker reads for its clients, if it was started with --allow-files=FOLDER. A client is
// not trusted: it names a path, a version, an offset and a size, and cannot read files outside of the folder. Even if a
// link in the folder leads outside, error messages do not show whether a path behind the link exists.
namespace torch_remote::worker {

struct FileVersion {
  uint64_t size = 0;  // Bytes.
  uint64_t inode = 0;
  int64_t mtime_ns = 0;  // Nanoseconds since 1970.
  bool operator==(const FileVersion&) const = default;
};

// An open file. It is read, not mapped, so that a file that is truncated meanwhile causes an error and not a signal.
class OpenFile {
 public:
  OpenFile() = default;
  // Takes ownership of the descriptor; the version stays 0.
  explicit OpenFile(int descriptor) : descriptor_(descriptor) {}
  ~OpenFile();
  OpenFile(OpenFile&& other) noexcept;
  OpenFile& operator=(OpenFile&& other) noexcept;

  // The version that the file had when Files opened it.
  const FileVersion& version() const { return version_; }
  // Fills `bytes` with the file's bytes from `offset` on. kUnsupported: a read failed, or the file is too short.
  Status read(uint64_t offset, std::span<std::byte> bytes) const;

 private:
  friend class Files;
  int descriptor_ = -1;
  FileVersion version_;
};

// Thread safe.
class Files {
 public:
  // Clients may read what lies in `folder`, at any depth, if this process may. Returns an error if there is no such
  // folder.
  static Status in(const std::string& folder, std::shared_ptr<const Files>* files);

  // Opens a regular file whose real path, with all links resolved, is in the folder. `path` is absolute, or relative to
  // the folder. All errors are kUnsupported, and their messages name only paths that the client knows.
  Status open(const std::string& path, OpenFile* file) const;
  // Opens the file only if it has this version, and at least `size` bytes from `offset` on.
  Status open(const std::string& path, const FileVersion& version, uint64_t offset, uint64_t size,
              OpenFile* file) const;

 private:
  explicit Files(std::string folder) : folder_(std::move(folder)) {}
  const std::string folder_;  // The real path, with a slash at its end.
};

// The error of a worker without Files.
Status no_files();

}  // namespace torch_remote::worker
