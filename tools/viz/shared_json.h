#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/common/graph_json.h"

// A compact form of several JSON documents: each value that occurs more than once is stored once (hash consing). The
// programs of a capture share most of their nodes, so a page with all of them is little larger than the largest one.
namespace torch_remote::tools {

// The text is the JSON object {"keys": [[name, ...], ...], "entries": [...]}.
//   An entry that is a string stands for that string.
//   An entry [-1, child, ...] is an array. An entry [k, child, ...] with k >= 0 is an object with the names keys[k].
//   A child [n] is entry n, which precedes the entry that has the child. Any other child stands for itself.
class SharedJson {
 public:
  // Adds an object, an array or a string, and returns the index of its entry.
  uint32_t add(const Json& value);

  // Number of entries, for `truncate`.
  uint32_t size() const { return static_cast<uint32_t>(entries_.size()); }
  // Removes the entries from `size` on.
  void truncate(uint32_t size);

  // Length of the text in bytes, up to a few bytes.
  size_t bytes() const { return bytes_; }
  std::string text() const;

 private:
  // Returns the text of a value as a child of an entry.
  std::string child(const Json& value);
  std::string entry(const Json& value);
  uint32_t intern(std::string entry);

  std::unordered_map<std::string, uint32_t> numbers_;  // an entry's text to its index
  std::vector<const std::string*> entries_;            // keys of numbers_
  std::unordered_map<std::string, uint32_t> key_numbers_;
  std::vector<const std::string*> keys_;  // keys of key_numbers_
  size_t bytes_ = 0;
};

}  // namespace torch_remote::tools
