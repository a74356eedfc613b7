#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#include <atomic>
#include <mutex>

// The random number generator consists of a seed and a position. The worker computes Philox4x32-10 counter blocks
// (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11). The client chooses the blocks when it records
// an op, so the numbers depend neither on where traces are cut nor on the worker.
namespace torch_remote::frontend {

// Philox position of a random record: a seed and the first counter block.
struct RandomState {
  uint64_t seed;
  uint64_t offset;
};

class RemoteGenerator final : public c10::GeneratorImpl {
 public:
  explicit RemoteGenerator(c10::DeviceIndex device);

  // Reserves the counter blocks that an op over `elements` elements may use: one block (four 32-bit words) per two
  // elements.
  RandomState take(int64_t elements);

  void set_current_seed(uint64_t seed) override;
  void set_offset(uint64_t offset) override;
  uint64_t get_offset() const override;
  uint64_t current_seed() const override;
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }

 private:
  RemoteGenerator* clone_impl() const override;

  mutable std::mutex state_mutex_;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

// Converts a generator state: a byte tensor of 16 elements on the CPU, seed and position. Raises for another tensor.
RandomState random_state_of(const c10::TensorImpl& tensor);
c10::intrusive_ptr<c10::TensorImpl> random_state_tensor(RandomState state);

const at::Generator& default_generator(c10::DeviceIndex device);
at::Generator new_generator(c10::DeviceIndex device);

}  // namespace torch_remote::frontend
