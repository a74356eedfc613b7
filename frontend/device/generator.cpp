#include "frontend/device/generator.h"

#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>

#include <array>
#include <cstring>
#include <vector>

#include "frontend/device/current_device.h"
#include "frontend/device/device_state.h"

namespace torch_remote::frontend {

RemoteGenerator::RemoteGenerator(c10::DeviceIndex device)
    : GeneratorImpl(c10::Device(c10::DeviceType::PrivateUse1, device),
                    c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

RandomState RemoteGenerator::take(int64_t elements) {
  std::lock_guard lock(state_mutex_);
  const RandomState state{seed_, offset_};
  offset_ += static_cast<uint64_t>(elements) / 2 + 1;
  return state;
}

void RemoteGenerator::set_current_seed(uint64_t seed) {
  std::lock_guard lock(state_mutex_);
  seed_ = seed;
  offset_ = 0;
}

void RemoteGenerator::set_offset(uint64_t offset) {
  std::lock_guard lock(state_mutex_);
  offset_ = offset;
}

uint64_t RemoteGenerator::get_offset() const {
  std::lock_guard lock(state_mutex_);
  return offset_;
}

uint64_t RemoteGenerator::current_seed() const {
  std::lock_guard lock(state_mutex_);
  return seed_;
}

uint64_t RemoteGenerator::seed() {
  const uint64_t random = c10::detail::getNonDeterministicRandom(true);
  set_current_seed(random);
  return random;
}

RandomState random_state_of(const c10::TensorImpl& tensor) {
  at::detail::check_rng_state(tensor);
  TORCH_CHECK(tensor.numel() == 16, "remote: an RNG state of `remote` has 16 bytes, this one has ", tensor.numel(),
              "; take it from torch.remote.get_rng_state()");
  std::array<uint64_t, 2> words;
  std::memcpy(words.data(), tensor.data(), sizeof words);
  return {words[0], words[1]};
}

c10::intrusive_ptr<c10::TensorImpl> random_state_tensor(RandomState state) {
  const auto tensor = at::detail::empty_cpu({16}, c10::ScalarType::Byte);
  const std::array<uint64_t, 2> words{state.seed, state.offset};
  std::memcpy(tensor.mutable_data_ptr(), words.data(), sizeof words);
  return tensor.getIntrusivePtr();
}

void RemoteGenerator::set_state(const c10::TensorImpl& tensor) {
  const RandomState state = random_state_of(tensor);
  std::lock_guard lock(state_mutex_);
  seed_ = state.seed;
  offset_ = state.offset;
}

c10::intrusive_ptr<c10::TensorImpl> RemoteGenerator::get_state() const {
  std::lock_guard lock(state_mutex_);
  return random_state_tensor({seed_, offset_});
}

RemoteGenerator* RemoteGenerator::clone_impl() const {
  auto* copy = new RemoteGenerator(device().index());
  std::lock_guard lock(state_mutex_);
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto generators = [] {
    std::vector<at::Generator> all;
    all.reserve(kMaxDevices);
    for (int i = 0; i < kMaxDevices; ++i) {
      all.push_back(at::make_generator<RemoteGenerator>(static_cast<c10::DeviceIndex>(i)));
    }
    return all;
  }();
  return generators[checked_device(device < 0 ? current_device() : device)];
}

at::Generator new_generator(c10::DeviceIndex device) {
  return at::make_generator<RemoteGenerator>(checked_device(device < 0 ? current_device() : device));
}

}  // namespace torch_remote::frontend
