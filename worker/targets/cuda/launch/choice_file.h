#pragma once

#include <map>
#include <string>
#include <string_view>

namespace torch_remote::worker::cuda {

// Which algorithms were found to be fastest on this machine, on disk. A line has a key, a choice, and a hash of both
// and of `environment`. Keys and choices contain no spaces. Threads may call `find` while one thread calls `add`. Other
// processes may append lines meanwhile.
class ChoiceFile {
 public:
  ChoiceFile() = default;
  // `folder` must be writable by this user only; empty: no file. `environment`: what choices depend on in addition to
  // their keys. `kind`: the file name's extension.
  ChoiceFile(const std::string& folder, std::string environment, std::string_view kind);

  // The last choice for the key in the file when it was opened; null: there is none.
  const std::string* find(const std::string& key) const;
  void add(const std::string& key, const std::string& choice);

 private:
  std::string environment_;
  std::string path_;  // Empty: there is no file.
  std::map<std::string, std::string> choices_;
};

}  // namespace torch_remote::worker::cuda
