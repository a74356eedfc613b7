#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_remote::worker::kernels {

// Files on disk, found by a text: compiled kernels by their source, choices of algorithms by their problem. All are in
// a folder that only the user can write to. Several processes may use the folder. Thread safe.
class KernelFiles {
 public:
  // `folder` is created with mode 0700 if it does not exist. An existing folder keeps its mode; if others can write to
  // it, nothing is cached. `limit`: bytes of all cached files; the oldest ones are removed first. Other files in the
  // folder are left alone. `key_prefix`: what distinguishes files of the same text: the target, the compiler's version.
  KernelFiles(std::string folder, uint64_t limit, std::string key_prefix);

  // Returns false if the file does not exist or is damaged.
  bool read(const std::string& text, std::vector<uint8_t>* bytes) const;
  void write(const std::string& text, const std::vector<uint8_t>& bytes) const;
  // Removes files beyond the limit.
  void prune() const;

 private:
  std::string path_of(const std::string& text) const;

  std::string folder_;
  const uint64_t limit_;
  const std::string key_prefix_;
};

}  // namespace torch_remote::worker::kernels
