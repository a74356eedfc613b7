#include "worker/runner/kernel_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

namespace torch_remote::worker::kernels {
namespace {

namespace fs = std::filesystem;

uint64_t hash(std::string_view text, uint64_t seed) {
  uint64_t value = seed ^ (text.size() * 0x9E3779B97F4A7C15);
  for (const char c : text) {
    value = (value ^ static_cast<uint8_t>(c)) * 0x100000001B3;
    value ^= value >> 29;
  }
  return value * 0x9E3779B97F4A7C15;
}

// A file consists of this header, the text, and the kernel.
struct Header {
  char magic[8] = {'T', 'R', 'K', 'E', 'R', 'N', '0', '2'};
  uint64_t checksum = 0;  // Checksum of text and kernel.
  uint32_t text_size = 0, size = 0;
};

uint64_t checksum(std::string_view text, const std::vector<uint8_t>& bytes) {
  return hash({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, hash(text, 1));
}

constexpr std::string_view kSuffix = ".kernel";
constexpr size_t kDigits = 32;

// Whether path_of() or write() makes files of this name: digits, the suffix, and a process id while the file is
// written.
bool is_own_name(std::string_view name) {
  const auto all = [](std::string_view text, std::string_view of) {
    return text.find_first_not_of(of) == std::string_view::npos;
  };
  if (name.size() < kDigits + kSuffix.size() || !all(name.substr(0, kDigits), "0123456789abcdef")) return false;
  name.remove_prefix(kDigits);
  if (!name.starts_with(kSuffix)) return false;
  name.remove_prefix(kSuffix.size());
  return name.empty() || (name.size() > 1 && name[0] == '.' && all(name.substr(1), "0123456789"));
}

// Whether only this user can write to the folder: others must not be able to add code.
bool is_private(const fs::path& folder) {
  struct stat info{};
  return ::stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() &&
         (info.st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

}  // namespace

KernelFiles::KernelFiles(std::string folder, uint64_t limit, std::string key_prefix)
    : folder_(std::move(folder)), limit_(limit), key_prefix_(std::move(key_prefix)) {
  if (folder_.empty()) return;
  std::error_code error;
  const fs::path made(folder_);
  fs::create_directories((made.has_filename() ? made : made.parent_path()).parent_path(), error);
  (void)::mkdir(folder_.c_str(), 0700);  // Fails for an existing folder, which keeps its mode.
  if (!is_private(made)) folder_.clear();
}

std::string KernelFiles::path_of(const std::string& text) const {
  const std::string key = key_prefix_ + '\n' + text;
  char name[64];
  std::snprintf(name, sizeof(name), "%016llx%016llx.kernel", static_cast<unsigned long long>(hash(key, 2)),
                static_cast<unsigned long long>(hash(key, 3)));
  return folder_ + "/" + name;
}

bool KernelFiles::read(const std::string& text, std::vector<uint8_t>* bytes) const {
  if (folder_.empty()) return false;
  std::ifstream file(path_of(text), std::ios::binary);
  Header header;
  const Header expected;
  if (!file.read(reinterpret_cast<char*>(&header), sizeof(header)) ||
      std::memcmp(header.magic, expected.magic, sizeof(header.magic)) != 0 || header.text_size != text.size() ||
      header.size > (64u << 20)) {
    return false;
  }
  std::string stored(header.text_size, '\0');
  bytes->resize(header.size);
  return file.read(stored.data(), static_cast<std::streamsize>(stored.size())) && stored == text &&
         file.read(reinterpret_cast<char*>(bytes->data()), static_cast<std::streamsize>(bytes->size())) &&
         header.checksum == checksum(stored, *bytes);
}

// Writes to a temporary name first, so that other processes never see a partial file.
void KernelFiles::write(const std::string& text, const std::vector<uint8_t>& bytes) const {
  if (folder_.empty()) return;
  Header header;
  header.checksum = checksum(text, bytes);
  header.text_size = static_cast<uint32_t>(text.size());
  header.size = static_cast<uint32_t>(bytes.size());
  const std::string path = path_of(text);
  const std::string made = path + "." + std::to_string(::getpid());
  std::ofstream file(made, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  file.close();
  std::error_code error;
  if (file) fs::rename(made, path, error);
  if (!file || error) fs::remove(made, error);
}

void KernelFiles::prune() const {
  if (folder_.empty()) return;
  struct File {
    fs::file_time_type time;
    uint64_t size;
    fs::path path;
  };
  std::vector<File> files;
  uint64_t total = 0;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder_, error)) {
    if (!is_own_name(entry.path().filename().native()) || entry.is_symlink(error)) continue;
    const uint64_t size = entry.file_size(error);
    if (error) continue;  // Another process has removed it.
    files.push_back({entry.last_write_time(error), size, entry.path()});
    total += size;
  }
  if (total <= limit_) return;
  std::ranges::sort(files, {}, &File::time);
  for (const File& file : files) {
    if (total <= limit_ / 2) break;
    if (fs::remove(file.path, error)) total -= file.size;
  }
}

}  // namespace torch_remote::worker::kernels
