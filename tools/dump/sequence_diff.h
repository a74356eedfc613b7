#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The common elements of two sequences, and the difference of two texts for people.
namespace torch_remote::tools {

// Pairs (index in a, index in b) of equal elements, in order. They are the longest common subsequence (Myers, "An O(ND)
// difference algorithm", 1986), unless the sequences have thousands of differences.
using Pairs = std::vector<std::pair<size_t, size_t>>;
Pairs common_elements(std::span<const uint64_t> a, std::span<const uint64_t> b);

// A unified diff with three lines of context; empty if the texts are equal.
std::string unified_diff(std::string_view a, std::string_view b, const std::string& name_a, const std::string& name_b);

}  // namespace torch_remote::tools
