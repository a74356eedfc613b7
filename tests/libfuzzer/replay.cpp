// A fuzz target without libFuzzer: replay [--inputs=N] FILE...
//
// Runs the target on each file, which it must accept, and on N damaged inputs derived from the files. These are the
// same in each run. Some must be accepted and some refused; otherwise the corpus or the damage is useless.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "tests/libfuzzer/fuzzer.h"

namespace torch_remote::fuzzers {
namespace {

using Bytes = std::vector<uint8_t>;
using Rng = std::mt19937_64;

size_t below(Rng& rng, size_t limit) { return limit == 0 ? 0 : rng() % limit; }

// Applies one random modification.
void damage(Rng& rng, const std::vector<Bytes>& corpus, Bytes& bytes) {
  const size_t at = below(rng, bytes.size() + 1);
  const size_t length = std::min(bytes.size() - at, size_t{1} << below(rng, 8));
  const auto begin = bytes.begin() + static_cast<ptrdiff_t>(at);
  const auto end = begin + static_cast<ptrdiff_t>(length);
  switch (rng() % 6) {
    case 0:
      if (length > 0) *begin ^= static_cast<uint8_t>(1u << rng() % 8);
      break;
    case 1:
      if (length > 0) *begin = static_cast<uint8_t>(rng());
      break;
    case 2: {  // an extreme value of an integer type
      constexpr uint64_t kEdges[] = {0, 1, 0x7F, 0x80, 0xFF, 0x7FFF'FFFF, 0x8000'0000, 0xFFFF'FFFF, ~uint64_t{0} >> 1};
      const uint64_t edge = kEdges[rng() % std::size(kEdges)];
      const size_t width = std::min(bytes.size() - at, size_t{1} << rng() % 4);
      std::memcpy(bytes.data() + at, &edge, width);
      break;
    }
    case 3:
      bytes.erase(begin, end);
      break;
    case 4: {
      const Bytes again(begin, end);
      bytes.insert(begin, again.begin(), again.end());
      break;
    }
    case 5: {  // a piece of another input
      const Bytes& other = corpus[below(rng, corpus.size())];
      const size_t from = below(rng, other.size());
      const size_t count = std::min({other.size() - from, bytes.size() - at, size_t{1} << below(rng, 10)});
      std::copy_n(other.begin() + static_cast<ptrdiff_t>(from), count, begin);
      break;
    }
  }
}

int replay(int argc, char** argv) {
  uint64_t inputs = 0;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.starts_with("--inputs=")) {
      inputs = std::strtoull(argument.c_str() + 9, nullptr, 10);
      continue;
    }
    std::ifstream file(argument, std::ios::binary);
    if (!file) wrong("cannot read " + argument);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    const uint64_t before = counts().accepted;
    LLVMFuzzerTestOneInput(corpus.back().data(), corpus.back().size());
    if (counts().accepted == before) {
      wrong(argument + " is refused: is the corpus older than the format? bazel run //tests/libfuzzer:make_corpus");
    }
  }
  if (corpus.empty()) wrong("no corpus");
  counts() = {};
  Rng rng(1);
  for (uint64_t i = 0; i < inputs; ++i) {
    Bytes bytes = corpus[below(rng, corpus.size())];
    for (uint64_t count = 1 + rng() % 4; count > 0; --count) damage(rng, corpus, bytes);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu files; of %llu inputs %llu accepted, %llu refused\n", corpus.size(),
              static_cast<unsigned long long>(inputs), static_cast<unsigned long long>(counts().accepted),
              static_cast<unsigned long long>(counts().refused));
  if (inputs > 0 && counts().accepted < inputs / 100) wrong("hardly an input is accepted");
  if (inputs > 0 && counts().refused < inputs / 100) wrong("hardly an input is refused");
  return 0;
}

}  // namespace
}  // namespace torch_remote::fuzzers

int main(int argc, char** argv) { return torch_remote::fuzzers::replay(argc, argv); }
