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
#include "worker/targets/cuda/gemm/gemm.h"
#include "worker/targets/cuda/launch/choice_file.h"

namespace torch_remote::worker::cuda {

// The algorithm for GEMMs that have the same key. The heuristic is asked once. By default, its first choice is used, so
// every run gives the same bits.
//
// If a problem is tuned, the fastest of the heuristic's results is used. The first use runs the first choice. Behind
// this call, it queues timed calls of all candidates, which write to scratch memory. Later uses check whether the GPU
// has finished the timing (timed_choice.h). The chosen algorithm is used from then on, and stored in a file. If there
// is no memory for the timing, the first choice stays, and nothing is stored. If the file has an algorithm for the key,
// neither the heuristic nor timing is needed.
struct AlgorithmChoice {
  // The types, flags, alignments, epilogue, sizes and strides of a Problem. If it is tuned, sizes are rounded up to
  // three significant bits, and only the alignment of strides counts. Otherwise, sizes and strides are exact. A size
  // with this key that the algorithm does not support gets its own choice.
  std::string key;
  std::vector<lt::HeuristicResult> candidates;  // The heuristic's first choice first.
  size_t best = 0;
  std::vector<Event> timing_events;  // Events around each candidate while they are timed; one more than candidates.
  bool decided = false;
};

// Everything that a problem's calls need, made once. The table must outlive it.
class PreparedGemm {
 public:
  ~PreparedGemm();
  PreparedGemm(const PreparedGemm&) = delete;
  PreparedGemm& operator=(const PreparedGemm&) = delete;

 private:
  friend class CublasLtLibrary;
  explicit PreparedGemm(const lt::Table& table) : table_(table) {}

  const lt::Table& table_;
  Problem problem_;
  lt::Desc desc_ = nullptr;
  lt::Layout a_ = nullptr, b_ = nullptr, c_ = nullptr, d_ = nullptr;
  DevicePointer bias_ = 0, a_scale_ = 0, b_scale_ = 0;  // The pointers that the descriptor holds now.
  std::shared_ptr<AlgorithmChoice> choice_;
  lt::HeuristicResult candidate_;  // An algorithm of the choice that supports the problem, and its workspace here.
  bool is_decided_ = false;        // AlgorithmChoice::decided when the algorithm was taken from the choice.
  bool has_timed_ = false;         // All candidates of the choice were called for this problem.
  bool has_succeeded_ = false;     // A call of this algorithm has succeeded.
};

struct GemmPointers {
  DevicePointer a = 0, b = 0, c = 0, d = 0, bias = 0, a_scale = 0, b_scale = 0;
};

// cuBLASLt on one GPU's work stream. Used by one thread, with the GPU's context current. The table must outlive it.
class CublasLtLibrary {
 public:
  struct Options {
    const lt::Table* table = nullptr;
    std::string folder;            // Where choices are stored; empty: nowhere. Must not be writable by others.
    size_t workspace = 0;          // The most bytes; 0: 32 MiB from sm 90 on, else 8 MiB, as torch has.
    int requested = 8, timed = 4;  // How many algorithms the heuristic returns, and how many of them are timed.
  };
  static Status open(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options,
                     std::unique_ptr<CublasLtLibrary>* library);
  ~CublasLtLibrary();

  // kUnsupported: cuBLASLt does not support the problem.
  Status prepare(const Problem& problem, std::shared_ptr<PreparedGemm>* prepared);
  // Adds the call to Gpu::queue(), which passes it to cuBLASLt later. Until a call of `prepared` with its present
  // algorithm has succeeded, run() calls cuBLASLt at once and returns its error, as only a call shows whether cuBLASLt
  // can execute the problem. An error of a later call loses the GPU. If there is no memory for the workspace, run()
  // chooses an algorithm without one; in deterministic mode it returns kOutOfMemory instead. If the GPU is lost, it
  // does nothing and returns ok.
  Status run(const std::shared_ptr<PreparedGemm>& prepared, const GemmPointers& pointers, Number alpha, Number beta);

  // How often the heuristic was asked, and how often the file named the algorithm instead.
  uint64_t heuristic_calls() const { return heuristic_calls_; }
  uint64_t file_hits() const { return file_hits_; }

 private:
  CublasLtLibrary(std::shared_ptr<Gpu> gpu, CachingAllocator& memory, Options options);

  Status describe(PreparedGemm& prepared);
  Status choose(PreparedGemm& prepared);
  // Takes the choice's algorithm for the problem. False: it does not support the problem.
  bool adopt(PreparedGemm& prepared, std::shared_ptr<AlgorithmChoice> choice) const;
  Status query_heuristics(PreparedGemm& prepared, AlgorithmChoice& choice);
  bool check(const PreparedGemm& prepared, const lt::Algorithm& algorithm, lt::HeuristicResult* candidate) const;
  Status set_pointers(PreparedGemm& prepared, const GemmPointers& pointers) const;
  Status call(const PreparedGemm& prepared, const lt::HeuristicResult& candidate, const GemmPointers& pointers,
              const void* alpha, const void* beta, Stream stream) const;
  void time(PreparedGemm& prepared, const GemmPointers& pointers, const void* alpha, const void* beta);
  void decide(const std::shared_ptr<AlgorithmChoice>& decided);
  bool take_workspace();

  const std::shared_ptr<Gpu> gpu_;
  CachingAllocator& memory_;
  const Options options_;
  const lt::Table& table_;
  lt::Handle handle_ = nullptr;
  DevicePointer workspace_ = 0;
  bool no_workspace_ = false;  // There was no memory for it.
  std::unordered_map<std::string, std::shared_ptr<AlgorithmChoice>> choices_;
  std::vector<std::shared_ptr<AlgorithmChoice>> timed_;  // Choices with timing events; some are not in choices_.
  ChoiceFile file_;
  uint64_t heuristic_calls_ = 0, file_hits_ = 0;
};

}  // namespace torch_remote::worker::cuda
