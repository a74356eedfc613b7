#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/status.h"
#include "worker/device/memory.h"
#include "worker/targets/cuda/device/gpu.h"
#include "worker/targets/cuda/gemm/cublaslt.h"
#include "worker/targets/cuda/gemm/product.h"
#include "worker/targets/cuda/launch/choice_file.h"

namespace torch_remote::worker::cuda {

// How GEMMs of one kind are computed: the heuristic's results, and the fastest of them. The heuristic is asked once.
// The first use then queues each algorithm again behind the real call, into scratch memory, to time it. Later uses
// check whether the GPU has finished the timing. The fastest algorithm is used from then on, and stored in a file. In
// deterministic mode we use the heuristic's first choice for these exact sizes, without timing and without the file.
struct Choice {
  std::string key;
  std::vector<lt::Candidate> candidates;  // The heuristic's first choice first.
  size_t best = 0;
  std::vector<Event> marks;  // Events around each candidate while they are timed; one more than candidates.
  bool decided = false;
};

// Everything that a problem's calls need, made once.
class PreparedProduct {
 public:
  ~PreparedProduct();
  PreparedProduct(const PreparedProduct&) = delete;
  PreparedProduct& operator=(const PreparedProduct&) = delete;

 private:
  friend class ProductLibrary;
  explicit PreparedProduct(const lt::Table& table) : table_(table) {}

  const lt::Table& table_;
  Problem problem_;
  lt::Desc desc_ = nullptr;
  lt::Layout a_ = nullptr, b_ = nullptr, c_ = nullptr, d_ = nullptr;
  DevicePointer bias_ = 0, a_scale_ = 0, b_scale_ = 0;  // The pointers that the descriptor holds now.
  std::shared_ptr<Choice> choice_;
  bool proven_ = false;  // A call has succeeded.
};

struct ProductPointers {
  DevicePointer a = 0, b = 0, c = 0, d = 0, bias = 0, a_scale = 0, b_scale = 0;
};

// cuBLASLt on one GPU's work stream. Used by one thread, with the GPU's context current. The table must outlive it.
class ProductLibrary {
 public:
  struct Options {
    const lt::Table* table = nullptr;
    std::string folder;        // Where choices are stored; empty: nowhere. Must not be writable by others.
    size_t workspace = 0;      // The most bytes; 0: as much as torch uses.
    int asked = 8, timed = 4;  // How many algorithms the heuristic returns, and how many of them are timed.
  };
  static Status open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                     std::unique_ptr<ProductLibrary>* library);
  ~ProductLibrary();

  // kUnsupported: cuBLASLt does not support the problem.
  Status prepare(const Problem& problem, std::shared_ptr<PreparedProduct>* prepared);
  // Queues the call. The first call is immediate, as only the call itself shows whether it works.
  Status run(const std::shared_ptr<PreparedProduct>& prepared, const ProductPointers& pointers, Number alpha,
             Number beta);

  // How often the heuristic was asked, and how often the file named the algorithm instead.
  uint64_t asked() const { return asked_; }
  uint64_t found() const { return found_; }

 private:
  ProductLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options);

  Status describe(PreparedProduct& prepared);
  Status choose(PreparedProduct& prepared);
  Status ask(PreparedProduct& prepared, Choice& choice);
  bool check(const PreparedProduct& prepared, const lt::Algorithm& algorithm, lt::Candidate* candidate) const;
  Status set_pointers(PreparedProduct& prepared, const ProductPointers& pointers) const;
  Status call(const PreparedProduct& prepared, const lt::Candidate& candidate, const ProductPointers& pointers,
              const void* alpha, const void* beta, Stream stream) const;
  void time(const PreparedProduct& prepared, const ProductPointers& pointers, const void* alpha, const void* beta);
  void decide(Choice& choice);
  bool take_workspace();

  const std::shared_ptr<Gpu> gpu_;
  CachingAllocator& memory_;
  const Options options_;
  const lt::Table& table_;
  lt::Handle handle_ = nullptr;
  DevicePointer workspace_ = 0;
  bool no_workspace_ = false;  // There was no memory for it.
  std::unordered_map<std::string, std::shared_ptr<Choice>> choices_;
  ChoiceFile file_;
  uint64_t asked_ = 0, found_ = 0;
};

}  // namespace torch_remote::worker::cuda
