#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace torch_remote::worker::kernels {

// Compiled kernels on disk, by their text: one file each, in a folder that only the user can write to. Several
// processes may use it. Any thread.
class KernelFiles {
 public:
  // `folder` is made if it is not there; empty, or others can write to it: nothing is kept. `limit`: bytes of all
  // files, the oldest ones go first. `about`: what makes of one text several kernels: target, version of the compiler.
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
