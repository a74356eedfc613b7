#pragma once

#include <map>
#include <string>
#include <string_view>

namespace torch_remote::worker::cuda {

// What was found to be fastest on this machine, on disk: lines of a key, a choice, and a hash of both and of what they
// depend on. Both are words without spaces. Used by one thread; other processes may add lines meanwhile.
class ChoiceFile {
 public:
  ChoiceFile() = default;
  // In a folder that nobody else can write to (empty: nowhere). `about`: what choices depend on beside their keys;
  // `kind`: the file's ending.
  ChoiceFile(const std::string& folder, std::string about, std::string_view kind);

  // Null: there is none. Of several the last one.
  const std::string* find(const std::string& key) const;
  void add(const std::string& key, const std::string& choice);

 private:
  std::string about_;
  std::string path_;  // empty: there is no file
  std::map<std::string, std::string> kept_;
};

}  // namespace torch_remote::worker::cuda
