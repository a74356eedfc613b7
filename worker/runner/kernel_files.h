#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_remote::worker::kernels {

// Compiled kernels on disk, by their text: one file each, in a folder that only the user can write to. Several
// processes may use it. Any thread.
class KernelFiles {
 public:
  // `folder` is made (mode 0700) if it is not there; one that is there keeps its mode, and where others can write to it
  // nothing is cached. `limit`: bytes of all cached files, the oldest ones go first; other files in the folder are left
  // alone. `about`: what makes of one text several kernels: target, version of the compiler.
  KernelFiles(std::string folder, uint64_t limit, std::string about);

  // False: it is not there, or damaged.
  bool read(const std::string& text, std::vector<uint8_t>* bytes) const;
  void write(const std::string& text, const std::vector<uint8_t>& bytes) const;
  // Removes what is too much.
  void prune() const;

 private:
  std::string path_of(const std::string& text) const;

  std::string folder_;
  const uint64_t limit_;
  const std::string about_;
};

}  // namespace torch_remote::worker::kernels
