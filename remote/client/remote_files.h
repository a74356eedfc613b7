#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/status.h"
#include "remote/transport/transport.h"

namespace torch_remote::remote {

class Channel;

// Identifies one version of a file's contents.
struct FileVersion {
  uint64_t size = 0;  // bytes
  uint64_t inode = 0;
  int64_t mtime_ns = 0;  // ns since 1970
};

// A file as the worker sees it.
struct FoundFile {
  FileVersion version;
  bool readable = false;  // whether the worker may read this file for its client
  bool allowed = false;   // whether the worker reads files for its clients at all
  std::string reason;     // why it may not read the file
};

// Files that the worker reads. Thread safe.
class RemoteFiles {
 public:
  explicit RemoteFiles(Channel& channel) : channel_(channel) {}

  // Asks whether the worker finds a file at `path` and may read it. Waits.
  Status find(std::string_view path, const KeepWaiting& keep_waiting, FoundFile* file);
  // Creates a buffer with bytes of such a file, which the worker reads. Sets *id.
  Status read(std::string_view path, const FileVersion& version, uint64_t offset, uint64_t size, uint64_t* id);

 private:
  Channel& channel_;
};

}  // namespace torch_remote::remote
