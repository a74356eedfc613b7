#include "worker/targets/cuda/launch/choice_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace torch_remote::worker::cuda {
namespace {

constexpr uint64_t kMaxFileBytes = 1 << 20;  // bytes

uint64_t hash(std::string_view text) {
  uint64_t value = 0xCBF29CE484222325;
  for (const char c : text) value = (value ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return value ^ value >> 29;
}

std::string sum_of(const std::string& environment, const std::string& key, const std::string& choice) {
  std::string all = environment;
  all += key;
  all += choice;
  return std::to_string(hash(all));
}

}  // namespace

ChoiceFile::ChoiceFile(const std::string& folder, std::string environment, std::string_view kind)
    : environment_(std::move(environment)) {
  namespace fs = std::filesystem;
  struct stat info{};
  if (folder.empty()) return;
  std::error_code error;
  fs::create_directories(folder, error);
  // If others could write there, they could choose which code is called.
  if (::stat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
      (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return;
  }
  char name[32];
  std::snprintf(name, sizeof(name), "/%016llx.", static_cast<unsigned long long>(hash(environment_)));
  path_ = folder + name + std::string(kind);
  if (fs::file_size(path_, error) > kMaxFileBytes && !error) fs::remove(path_, error);
  std::ifstream file(path_);
  std::string key, choice, sum;
  while (file >> key >> choice >> sum) {
    if (sum == sum_of(environment_, key, choice)) choices_[key] = choice;
  }
}

const std::string* ChoiceFile::find(const std::string& key) const {
  const auto found = choices_.find(key);
  return found != choices_.end() ? &found->second : nullptr;
}

// One write per line, so that lines of several processes do not interleave.
void ChoiceFile::add(const std::string& key, const std::string& choice) {
  if (path_.empty()) return;
  const std::string line = key + " " + choice + " " + sum_of(environment_, key, choice) + "\n";
  const int file = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  if (file < 0) return;
  (void)!::write(file, line.data(), line.size());
  ::close(file);
}

}  // namespace torch_remote::worker::cuda
